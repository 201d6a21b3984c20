package compute

import (
	"testing"

	"github.com/lamina-ml/lamina/internal/kerneltest"
)

func TestMain(m *testing.M) { kerneltest.Main(m) }
