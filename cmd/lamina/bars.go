package main

import (
	"fmt"
	"io"
	"os"

	"github.com/lamina-ml/lamina/bench"
)

// runBars is "lamina bench -bars".
func runBars(name string, stdout, stderr io.Writer) int {
	file, err := os.Open(name)
	if err != nil {
		fmt.Fprintf(stderr, "lamina bench: %v\n", err)
		return statusUnusable
	}
	defer file.Close()
	report, err := bench.ReadReport(file)
	if err != nil {
		fmt.Fprintf(stderr, "lamina bench: %s: %v\n", name, err)
		return statusUnusable
	}
	report.Bars(stdout)
	if report.Wrong() {
		fmt.Fprintf(stderr, "lamina bench: %s: a row has a wrong answer\n", name)
		return statusWrong
	}
	return statusOK
}
