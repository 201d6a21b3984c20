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

// set is an instruction set, as the dispatch of every kernel tests it.
type set uint8

const (
	setGeneric set = iota
	setAVX2
	setAVX512
	setAVX512BF16
	setNEON
	setNEONBF16
)

// supported is an instruction set that this build has bodies for and this machine runs.
type supported struct {
	set  set
	name string
}

// levels are the levels of this build that this machine can run, best first.
var levels = append(machine(), supported{setGeneric, Generic})

// chosen is the one state of the package: it is set here and never again.
var chosen = choose(os.Getenv(Env))

// choice is a level and how it came about.
type choice struct {
	supported
	extras
	why string
	err error
}

// extras are features beyond the promise of a level, for which some kernels have a body of their own.
type extras struct {
	hasVBMI, hasVNNI bool
}

// choose takes the best level, or the one that forced names.
func choose(forced string) choice {
	if forced == "" {
		return choice{supported: levels[0], extras: machineExtras(), why: "the best that this build has for this machine"}
	}
	for _, l := range levels {
		if l.name == forced {
			return choice{supported: l, extras: machineExtras(), why: Env + " asks for it"}
		}
	}
	err := fmt.Errorf("simd: %s=%q: %w: this build has %s on this machine", Env, forced, ErrLevel, strings.Join(Levels(), ", "))
	generic := supported{setGeneric, Generic}
	return choice{supported: generic, why: fmt.Sprintf("%s asks for %q, which is not available", Env, forced), err: err}
}

// Level is the name of the instruction set in use: "generic" is pure Go.
func Level() string { return chosen.name }

// Why says in a few words why Level is what it is.
func Why() string { return chosen.why }

// Levels are the instruction sets that this build can use on this machine, best first. It always ends in "generic".
func Levels() []string {
	var names []string
	for _, l := range levels {
		names = append(names, l.name)
	}
	return names
}

// Err is not nil if LAMINA_SIMD names an instruction set that is unknown or that this machine or build lacks; it wraps
// ErrLevel. The kernels still work then, at the generic level, but constructors above this package return the error.
func Err() error { return chosen.err }

// Features are the instruction set extensions of this machine's processor, as it reports them.
func Features() []string { return cpuid.CPU.FeatureSet() }
