package ref

// Log64 is Log before its last rounding, for the test of its error.
func Log64(x float32) float64 { return log64(x) }
