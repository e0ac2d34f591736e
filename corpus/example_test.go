package corpus_test

import (
	"context"
	"fmt"

	"apr/corpus"
)

// letters gives a to z the ids 1 to 26.
type letters struct{}

func (letters) AppendText(ids []int32, text string) []int32 {
	for _, r := range text {
		ids = append(ids, r-'a'+1)
	}
	return ids
}

func (letters) AppendChat([]int32, []uint8, []corpus.Message) ([]int32, []uint8, error) {
	return nil, nil, fmt.Errorf("no conversations here")
}

// Three documents become one sequence, each followed by the end-of-text id 0; the sequence becomes rows of 4 inputs
// and 4 targets.
func Example() {
	tokens, report, err := corpus.Load(context.Background(), []string{"testdata/three.jsonl"}, letters{},
		corpus.EncodeOptions{EOS: 0, Vocab: 27})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(report.Documents, "documents,", report.Bytes, "bytes:", tokens.IDs)

	rows, err := corpus.Pack(tokens, 4)
	if err != nil {
		fmt.Println(err)
		return
	}
	loader, err := corpus.NewLoader(rows, corpus.LoaderOptions{BatchRows: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	batch, err := loader.Next()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("inputs ", batch.Tokens)
	fmt.Println("targets", batch.Targets)
	fmt.Println("N =", batch.TargetCount(), "next", loader.Position())
	// Output:
	// 3 documents, 12 bytes: [1 2 3 4 5 6 0 7 8 9 0 10 11 12 0]
	// inputs  [1 2 3 4 6 0 7 8]
	// targets [2 3 4 5 0 7 8 9]
	// N = 8 next {0 2}
}
