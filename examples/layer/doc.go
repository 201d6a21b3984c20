// Command layer opens the directory of a checkpoint and takes hidden states that it makes up
// through the first attention block: a prompt at once, then token by token.
//
//	go run ./examples/layer DIR
//
//	DIR ── checkpoint.OpenModel ──> Model ── Block(0) ──> Block ── NewWorkspace ──> ws
//	                                   └── Config.Rope.Table ──> freqs         │
//	    kvpaged.Cache ── NewSeq ──> Seq ── Reserve ──────> Block.Forward(ws, out, hidden)
//	                                 └── Commit <───────────────────────────────┘
package main
