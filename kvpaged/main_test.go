package kvpaged_test

import (
	"testing"

	"github.com/lamina-ml/lamina/internal/kerneltest"
)

func TestMain(m *testing.M) { kerneltest.Main(m) }

func TestLevel(t *testing.T) { kerneltest.Level(t) }
