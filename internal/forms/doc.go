// Package forms is the two ways to compute a layer's attention from its weights and its cache:
//
//	absorbed   q' = [q_nope.w_uk | rope(q_rope)], attention over the cache rows as they lie, w_uv
//	           query product -> pack -> attend -> output product, in waves of tokens
//	expanded   K = [latent.w_k | rope part], V = latent.w_uv per head, ordinary attention
//	           expand -> attend, in ranges of keys, a group of heads at a time
//
// A Call says what is asked, checked already; a Workspace has the memory for it. Attention alone,
// without weights, is the absorbed form without its products.
package forms
