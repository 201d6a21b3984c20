// Command lamina measures the library, replays case files with known answers, and says what
// is in a checkpoint and in the machine.
//
//	lamina bench                 how fast the layer and its parts are, every answer checked
//	lamina replay [FILE|DIR...]  case files run through the public API and compared
//	lamina inspect PATH          what a file or a checkpoint holds, which of it runs, what a context costs
//	lamina info                  instruction sets, which was chosen and why, cores, caches
//	lamina version
//	lamina help [COMMAND]
//
// Results go to standard output, one JSON object per line where -json is given; tables,
// progress and faults to standard error. Exit status:
//
//	0    everything passed
//	1    an answer was wrong
//	2    something could not be used: a file, a flag, an instruction set, standard output;
//	     or a bench had time for no row
//	130  interrupted
//
// A case goes through replay like this:
//
//	case file ──checkpoint──> reader ──checks──> graphCase  ──mla, kvpaged──> output ──compare──> line
//	                     (names, types, shapes)  sparseCase                     └────hash────────┘
//	                                             mergeCase
//	                                             blockCase, whose weights are a checkpoint's
package main
