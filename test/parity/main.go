// Command parity shows which tests prove what kube-proxy does, row by row, and exits
// with 1 if a row has no test or a test of one failed. With -of cni it shows the same
// of what a CNI plugin must do.
//
//	parity go test -json ...   runs the command and reads what it prints
//	parity -in FILE            reads what go test -json printed, - for standard input
//	parity -named              only looks which tests are there
//	parity -packages           prints the packages that name rows, for go test
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"

	"onerule/test/conformance"

	"golang.org/x/sys/unix"
)

// module begins the import path of each package.
const module = "onerule"

// errOwed says that rows are missing or failed, or may have.
var errOwed = errors.New("not everything that is owed is proven")

// options are what the flags say, and where things are shown.
type options struct {
	of, in, save, root       string
	named, packages, missing bool
	command                  []string
	colour                   bool
	out, tell                io.Writer
}

func main() {
	o := options{out: os.Stdout, tell: os.Stderr, colour: terminal(os.Stdout)}
	flag.StringVar(&o.of, "of", "kube-proxy", "which list to show: kube-proxy or cni")
	flag.StringVar(&o.in, "in", "", "read this output of go test -json instead of running tests; - is standard input")
	flag.StringVar(&o.save, "save", "", "keep what the command prints in this file, for -in")
	flag.BoolVar(&o.named, "named", false, "run nothing, and show which tests name each row")
	flag.BoolVar(&o.packages, "packages", false, "print the packages whose tests name rows, and end")
	flag.BoolVar(&o.missing, "missing", false, "show only rows that are missing or failed")
	flag.StringVar(&o.root, "root", ".", "folder of the repository")
	flag.Parse()
	o.command = flag.Args()
	err := parity(o)
	if err == nil {
		return
	}
	fmt.Fprintf(os.Stderr, "parity: %v\n", err)
	if errors.Is(err, errOwed) {
		os.Exit(1)
	}
	os.Exit(2)
}

func parity(o options) error {
	if err := o.check(); err != nil {
		return err
	}
	rows, ids := o.list()
	if !o.named && !o.packages {
		r, err := o.results()
		if err != nil {
			return err
		}
		err = o.show(lines(rows, r.proofs(module, ids)))
		if broken := r.broken(); len(broken) > 0 {
			return fmt.Errorf("%w: these packages do not build, or end before their tests: %s", errOwed, strings.Join(broken, ", "))
		}
		return err
	}
	found, err := mentions(os.DirFS(o.root), ids)
	if err != nil {
		return err
	}
	if o.packages {
		fmt.Fprintln(o.out, strings.Join(packages(found), " "))
		return nil
	}
	return o.show(lines(rows, named(found)))
}

// list gives the rows that are asked for, and what reads their IDs.
func (o options) list() ([]conformance.Item, *reader) {
	if o.of == "cni" {
		return conformance.Items(), newCNIReader()
	}
	return owed(), newReader()
}

func (o options) check() error {
	if o.of != "" && o.of != "kube-proxy" && o.of != "cni" {
		return fmt.Errorf("-of %s: there are the lists kube-proxy and cni", o.of)
	}
	asked := 0
	for _, one := range []bool{o.in != "", o.named, o.packages, len(o.command) > 0} {
		if one {
			asked++
		}
	}
	if asked != 1 {
		return errors.New("give one of -in FILE, -named, -packages, or a command such as go test -json with packages")
	}
	return nil
}

func (o options) show(all []line) error {
	writeTable(o.out, all, look{colour: o.colour, missingOnly: o.missing})
	for _, l := range all {
		if l.bad {
			return errOwed
		}
	}
	return nil
}

// results reads the run that was asked for.
func (o options) results() (*run, error) {
	tell := func(text string) { fmt.Fprintln(o.tell, text) }
	if len(o.command) > 0 {
		return o.execute(tell)
	}
	in := os.Stdin
	if o.in != "-" {
		file, err := os.Open(o.in)
		if err != nil {
			return nil, fmt.Errorf("open the run: %w", err)
		}
		defer file.Close()
		in = file
	}
	return full(readRun(in, tell))
}

// execute runs the command. Its exit code says nothing new: the events tell what
// failed. An interrupt from the terminal reaches it as well: we wait for its end.
func (o options) execute(tell func(string)) (*run, error) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt)
	defer signal.Stop(signals)
	cmd := exec.Command(o.command[0], o.command[1:]...)
	cmd.Stderr = o.tell
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("pipe from %s: %w", o.command[0], err)
	}
	keep := io.Discard
	if o.save != "" {
		file, err := os.Create(o.save)
		if err != nil {
			return nil, fmt.Errorf("keep the run: %w", err)
		}
		defer file.Close()
		keep = file
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the tests: %w", err)
	}
	r, err := readRun(io.TeeReader(out, keep), tell)
	if waitErr := cmd.Wait(); waitErr != nil {
		tell(fmt.Sprintf("%s: %v", o.command[0], waitErr))
	}
	return full(r, err)
}

// full refuses a run without tests: everything would look missing.
func full(r *run, err error) (*run, error) {
	if err == nil && len(r.tests) == 0 {
		return nil, errors.New("no test ran: this is not what go test -json prints, or nothing was built")
	}
	return r, err
}

// terminal says whether to use colours on a file.
func terminal(file *os.File) bool {
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil && os.Getenv("NO_COLOR") == ""
}
