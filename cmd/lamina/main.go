package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
)

// Exit statuses; see doc.go.
const (
	statusOK          = 0
	statusWrong       = 1
	statusUnusable    = 2
	statusInterrupted = 130
)

const usage = `lamina runs multi-head latent attention on the CPU.

usage: lamina COMMAND [flags] [arguments]

  bench    measure decode, prefill and the FP8 products, and check the answers
  replay   run case files (or the embedded ones) and compare with their answers
  inspect  show what a file or the directory of a checkpoint holds, and what of it runs
  info     show the instruction sets, which was chosen and why, cores and caches
  version  show the version
  help     show this

"lamina help COMMAND" and "lamina COMMAND -h" show the flags of a command.
`

const versionUsage = `usage: lamina version

Shows the version of the program, of Go, and the platform.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second interrupt ends the program at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program without its process: it returns the exit status. Standard output that
// cannot be written to ends a command as an interrupt does.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return statusUnusable
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	out := &output{w: stdout, failed: stop}
	status := dispatch(ctx, args[0], args[1:], out, stderr)
	switch {
	case out.err != nil:
		fmt.Fprintf(stderr, "lamina %s: standard output: %v\n", args[0], out.err)
		return statusUnusable
	case status == statusInterrupted:
		fmt.Fprintf(stderr, "lamina %s: interrupted\n", args[0])
	}
	return status
}

// dispatch runs a command.
func dispatch(ctx context.Context, name string, args []string, stdout, stderr io.Writer) int {
	switch name {
	case "bench":
		return runBench(ctx, args, stdout, stderr)
	case "replay":
		return runReplay(ctx, args, stdout, stderr)
	case "inspect":
		return runInspect(ctx, args, stdout, stderr)
	case "info":
		return runInfo(ctx, args, stdout, stderr)
	case "version", "-version", "--version":
		return runVersion(args, stdout, stderr)
	case "help", "-h", "-help", "--help":
		return runHelp(ctx, args, stdout, stderr)
	}
	return noCommand(name, stderr)
}

func noCommand(name string, stderr io.Writer) int {
	fmt.Fprintf(stderr, "lamina: %q is no command\n\n%s", name, usage)
	return statusUnusable
}

// runHelp is "lamina help", of the program or of a command.
func runHelp(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) > 1 {
		fmt.Fprintf(stderr, "lamina help: %q is too much, wanted one command\n", args[1])
		return statusUnusable
	}
	if len(args) == 0 || args[0] == "help" {
		fmt.Fprint(stdout, usage)
		return statusOK
	}
	switch args[0] {
	case "bench", "replay", "inspect", "info", "version":
		return dispatch(ctx, args[0], []string{"-h"}, stdout, stderr)
	}
	return noCommand(args[0], stderr)
}

// runVersion is "lamina version".
func runVersion(args []string, stdout, stderr io.Writer) int {
	f := newFlags("version", versionUsage, stdout)
	if status, done := f.failed(f.parse(args), stderr); done {
		return status
	}
	fmt.Fprintln(stdout, version())
	return statusOK
}

// output is standard output. It remembers its first failure, calls failed, and then takes
// nothing more: who writes to it need not look.
type output struct {
	w      io.Writer
	failed func()
	err    error
}

func (o *output) Write(b []byte) (int, error) {
	if o.err != nil {
		return 0, o.err
	}
	n, err := o.w.Write(b)
	if err != nil {
		o.err = err
		o.failed()
	}
	return n, err
}

// flags are those of a command. Help goes to standard output, being what was asked for;
// faults are the caller's to print, once.
type flags struct {
	*flag.FlagSet
	usage  string
	stdout io.Writer
}

func newFlags(command, usage string, stdout io.Writer) *flags {
	f := &flags{flag.NewFlagSet(command, flag.ContinueOnError), usage, stdout}
	f.SetOutput(io.Discard)
	return f
}

// parse reads flags and nothing else.
func (f *flags) parse(args []string) error {
	err := f.Parse(args)
	if err == nil && f.NArg() > 0 {
		err = fmt.Errorf("%q is not a flag; %s takes no other arguments", f.Arg(0), f.Name())
	}
	return err
}

// failed reports whether the flags end the command, and with which status: that of an error,
// which it prints, or, where it is flag.ErrHelp, that of help.
func (f *flags) failed(err error, stderr io.Writer) (status int, done bool) {
	switch {
	case err == nil:
		return statusOK, false
	case errors.Is(err, flag.ErrHelp):
		f.help()
		return statusOK, true
	}
	fmt.Fprintf(stderr, "lamina %s: %v\n", f.Name(), err)
	return statusUnusable, true
}

func (f *flags) help() {
	fmt.Fprint(f.stdout, f.usage)
	defined := 0
	f.VisitAll(func(*flag.Flag) { defined++ })
	if defined > 0 {
		fmt.Fprint(f.stdout, "\nflags:\n")
		f.SetOutput(f.stdout)
		f.PrintDefaults()
	}
}

// version is the module's version, as far as the build knows it.
func version() string {
	v := "(devel)"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		v = info.Main.Version
	}
	return fmt.Sprintf("lamina %s %s %s/%s", v, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
