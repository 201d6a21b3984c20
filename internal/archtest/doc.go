// Package archtest is the test of the rules that every folder of this module keeps.
// No package imports it: it is run by go test, and what it finds it names as
// file, line and rule.
//
//	rule            what it demands
//	--------------  ---------------------------------------------------------------
//	Arrows          imports go down the floors; internal rooms open to their users only
//	FileOrder       inside a package calls go down its list of files
//	Outside         modules from elsewhere are used where the module says, by nobody else
//	InstructionSets no folder above simd knows an instruction set by name
//	DocFiles        doc.go everywhere, unconstrained, with a picture in public packages
//	Examples        a runnable example for every public package
//	TestMains       tests of public packages say what they ran on, and refuse a level that is not there
//	NoC             no cgo, no C files
//	Leftovers       nothing is marked as unfinished
//	Products        every float product is rounded by an explicit conversion
//	Opens           a user's path is opened without waiting, by internal/openfile
//	MathCalls       only those functions of math whose bits are the same everywhere
//	Generated       generated files have the one header, and are where they belong
//	DirectCalls     simd calls its kernels directly: no function values, no interfaces
//	State           no package-level variable changes after init
//
// The floors, from the roof to the ground; an arrow goes down and may skip floors:
//
//	cmd/lamina
//	bench
//	checkpoint
//	mla
//	kvpaged
//	bf16    fp8
//	simd
//	simd/ref    simd/amd64/*    simd/arm64/*
//
// The Go in the pages (README, docs) is held to the module as well: it compiles, or stands in a
// file that does.
//
// A rule is a function from the module's source to what it finds there:
//
//	Load(fs.FS) -> Tree -> Products(tree) -> []Finding
//
// so each is tried twice: on the module itself, where it must find nothing, and
// on a few lines that break it, where it must find exactly those.
package archtest
