package simd

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/klauspost/cpuid/v2"
)

// Generic is the level of pure Go, which every machine has.
const Generic = "generic"

// Env is the environment variable that forces a level. It is read once, when the program starts.
const Env = "LAMINA_SIMD"

// ErrLevel is the error of a level that was asked for and cannot be had.
var ErrLevel = errors.New("instruction set is not available")

// levels are the levels of this build that this machine can run, best first.
var levels = []string{Generic}

// chosen is the one state of the package: it is set here and never again.
var chosen = choose(os.Getenv(Env))

// choice is a level and how it came about.
type choice struct {
	level string
	why   string
	err   error
}

// choose takes the best level, or the one that forced names.
func choose(forced string) choice {
	if forced == "" {
		return choice{level: levels[0], why: "the best that this build has for this machine"}
	}
	for _, level := range levels {
		if level == forced {
			return choice{level: level, why: Env + " asks for it"}
		}
	}
	err := fmt.Errorf("simd: %s=%q: %w: this build has %s on this machine", Env, forced, ErrLevel, strings.Join(levels, ", "))
	return choice{level: Generic, why: fmt.Sprintf("%s asks for %q, which is not available", Env, forced), err: err}
}

// Level is the name of the instruction set in use: "generic" is pure Go.
func Level() string { return chosen.level }

// Why says in a few words why Level is what it is.
func Why() string { return chosen.why }

// Levels are the instruction sets that this build can use on this machine, best first. It always ends in "generic".
func Levels() []string { return append([]string(nil), levels...) }

// Err is not nil if LAMINA_SIMD names an instruction set that is unknown or that this machine or build lacks; it wraps
// ErrLevel. The kernels still work then, at the generic level, but constructors above this package return the error.
func Err() error { return chosen.err }

// Features are the instruction set extensions of this machine's processor, as it reports them.
func Features() []string { return cpuid.CPU.FeatureSet() }
