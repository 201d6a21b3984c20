package checkpoint

import (
	"bytes"
	"fmt"
	"io/fs"
)

// OpenIndex is OpenDir of an index and files that lie in memory.
func OpenIndex(index []byte, files map[string]*File) (*Dir, error) {
	d, b, r, size := &Dir{}, Limits{}.budget(), bytes.NewReader(index), int64(len(index))
	var err error
	if d.names, err = shardNames(r, size, b); err != nil {
		return nil, as(ErrFormat, err)
	}
	for _, name := range d.names {
		if files[name] == nil {
			return nil, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
		}
		d.files = append(d.files, files[name])
	}
	return d, as(ErrFormat, d.place(r, size, b))
}

// Sincos, Log and Pow are what tables are made of.
func Sincos(x float64) (sin, cos float64)   { return sincos(x) }
func Log(x float64) float64                 { return log(x) }
func Pow(x float64, num, den int64) float64 { return powersOf(x).of(num, den) }
func YarnScale(s, x float64) float64        { return yarnScale(s, x) }

// Row is one row of a table of so many positions.
func Row(r Rope, position, positions int) []float32 {
	f, err := r.Frequencies(positions)
	if err != nil {
		panic(err)
	}
	row := make([]float32, r.Dim)
	r.row(row, f, position)
	return row
}
