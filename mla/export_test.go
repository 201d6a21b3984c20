package mla

import "bytes"

// Replace is what Save writes files with.
var Replace = replace

// LoadBytes is LoadPacked of a file that lies in memory.
func LoadBytes(cfg Config, b []byte, source Fingerprint) (*Layer, error) {
	cfg, err := cfg.checked()
	if err != nil {
		return nil, err
	}
	return readLayer(cfg, bytes.NewReader(b), int64(len(b)), source)
}

// SaveBytes is what Save writes.
func SaveBytes(l *Layer, source Fingerprint) ([]byte, error) {
	var b bytes.Buffer
	err := l.write(&b, source)
	return b.Bytes(), err
}
