package kvpaged_test

import (
	"fmt"

	"github.com/lamina-ml/lamina/kvpaged"
)

// A cache of two layers with rows of four values in bf16.
func Example() {
	cache, err := kvpaged.New(kvpaged.Config{Layers: 2, PageTokens: 16, Width: 4, Format: kvpaged.BF16, Pages: 8})
	check(err)
	defer cache.Close()
	seq, err := cache.NewSeq()
	check(err)

	check(seq.Reserve(2)) // all or nothing
	for layer := range 2 {
		check(seq.WriteRows(layer, 0, []float32{
			1, 2, 3, 4,
			0.25, -0.5, 0.3, 1e6,
		}))
	}
	fmt.Println(seq.Len(), "tokens,", seq.Reserved(), "reserved")
	check(seq.Commit(2)) // visible from now on
	fmt.Println(seq.Len(), "tokens,", cache.FreePages(), "pages free")

	rows := make([]float32, 2*4)
	check(seq.ReadRows(rows, 1, 0, 2))
	fmt.Println(rows)
	fmt.Println(seq.Reserve(1000))
	// Output:
	// 0 tokens, 2 reserved
	// 2 tokens, 7 pages free
	// [1 2 3 4 0.25 -0.5 0.30078125 999424]
	// kvpaged: cache is full: 62 more pages needed, 7 of 8 free
}

// A prompt that many begin with is stored once: each conversation is a fork of it.
func ExampleSeq_Fork() {
	cache, err := kvpaged.New(kvpaged.Config{Layers: 1, PageTokens: 4, Width: 1, Format: kvpaged.BF16, Pages: 8})
	check(err)
	defer cache.Close()
	prompt, err := cache.NewSeq()
	check(err)
	check(prompt.Reserve(6))
	check(prompt.WriteRows(0, 0, []float32{1, 2, 3, 4, 5, 6}))
	check(prompt.Commit(6))

	for answer := range 2 {
		seq, err := prompt.Fork(6)
		check(err)
		check(seq.Reserve(1))
		check(seq.WriteRows(0, 6, []float32{float32(70 + answer)}))
		check(seq.Commit(1))
		rows := make([]float32, 7)
		check(seq.ReadRows(rows, 0, 0, 7))
		fmt.Println(rows, "in pages", seq.Pages())
	}
	fmt.Println("the prompt is in pages", prompt.Pages(), "and", cache.FreePages(), "are free")
	// Output:
	// [1 2 3 4 5 6 70] in pages [0 2]
	// [1 2 3 4 5 6 71] in pages [0 3]
	// the prompt is in pages [0 1] and 4 are free
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
