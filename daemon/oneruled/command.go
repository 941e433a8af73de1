package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"strings"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/klog/v2"

	"onerule/daemon/config"
	"onerule/daemon/inspect"
	"onerule/daemon/oneruled/cli"
	"onerule/nft"
)

// helpWidth is how long the lines of the help are at most.
const helpWidth = 100

// oomScoreFile is where the kernel reads how gladly to end this process.
const oomScoreFile = "/proc/self/oom_score_adj"

// Actions are what the program does once it knows what is asked for.
type actions struct {
	// start serves until the context ends.
	start func(context.Context, job) error
	// initialize does what --init-only asks for. It looks first whether the node can
	// be served at all.
	initialize func(context.Context, job) error
	// cleanup does what --cleanup asks for.
	cleanup func(context.Context, job) error
	// preview says what a daemon with the manifests of a job would change.
	preview func(context.Context, job) (inspect.Diff, error)
}

// A job is what an action is about.
type job struct {
	config.Settings
	flags   *config.Flags
	given   map[string]string // the flags' values, by name
	version string
	socket  string // where questions are answered: see socketFlag
	// without are the families that there can be no tables for, and why.
	without map[nft.Family]error
	log     logr.Logger
}

func command(version string, does actions) *cobra.Command {
	flags, socket := config.NewFlags(), ""
	cmd := &cobra.Command{
		Use:   "oneruled [flags]",
		Short: "answer for Services on this node, with constant nftables rules",
		Long: `oneruled translates the addresses of Services to those of their endpoints, in
nftables. Its rules are constant: every change is an element of a map.

It reads Services and EndpointSlices from an API server (--kubeconfig, or the
service account of the pod it runs in), or from files (--manifests). Stopping it
changes nothing: connections and translation go on. The flags and the configuration
file of kube-proxy work as they are.`,
		Example: `  oneruled --manifests /etc/onerule --cluster-cidr 10.244.0.0/16
  oneruled --kubeconfig /etc/kubernetes/proxy.conf --hostname-override node-1
  oneruled --config /var/lib/kube-proxy/config.conf`,
		Args:          noArguments,
		SilenceUsage:  true,
		SilenceErrors: true,
		// How many letters may be wrong in a command that is not there.
		SuggestionsMinimumDistance: 2,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runAsked(cmd, flags, socket, version, does)
		},
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w %s", err, seeHelp(cmd))
	})
	cmd.SetHelpFunc(func(cmd *cobra.Command, _ []string) { help(cmd.OutOrStdout(), cmd, flags) })
	flags.Register(cmd.Flags())
	cmd.SetGlobalNormalizationFunc(cliflag.WordSepNormalizeFunc) // underscores, as with kube-proxy
	socketFlag(cmd.PersistentFlags(), &socket)
	addCommands(cmd, &socket, does.preview, version)
	cmd.AddCommand(installCommand(), uninstallCommand(&socket), completionCommand())
	return cmd
}

func help(to io.Writer, cmd *cobra.Command, flags *config.Flags) {
	if cmd.HasParent() {
		cli.Help(to, cmd)
		return
	}
	fmt.Fprintf(to, "%s\n\nUsage:\n  %s\n  oneruled COMMAND [flags]\n\nExamples:\n%s\n\n", cmd.Long, cmd.Use, cmd.Example)
	fmt.Fprint(to, "Commands, most of which ask the daemon that runs on this node (oneruled COMMAND --help shows more):\n")
	for _, c := range cmd.Commands() {
		if !c.Hidden && c.Name() != "help" {
			fmt.Fprintf(to, "  %-11s %s\n", c.Name(), c.Short)
		}
	}
	fmt.Fprintf(to, "\n%s\nCommands and the daemon:\n%s", flags.Usage(helpWidth), cmd.PersistentFlags().FlagUsagesWrapped(helpWidth))
}

// noArguments refuses arguments: what is asked for is said by flags. Empty ones are
// what shell scripts leave of unset variables.
func noArguments(cmd *cobra.Command, args []string) error {
	for _, arg := range args {
		if arg == "" {
			continue
		}
		if like := meant(cmd, arg); like != "" {
			return fmt.Errorf("there is no command %q: did you mean oneruled %s? (oneruled --help lists the commands)", arg, like)
		}
		return fmt.Errorf("unexpected argument %q %s", arg, seeHelp(cmd))
	}
	return nil
}

// meant gives the command that somebody may have meant, "" if none is like it.
func meant(cmd *cobra.Command, word string) string {
	switch {
	case cmd.HasParent():
		return ""
	case word == "preflight":
		return "install --preflight"
	}
	return strings.Join(cmd.SuggestionsFor(word), ", or oneruled ")
}

// seeHelp ends what is said of a command line that is wrong.
func seeHelp(cmd *cobra.Command) string {
	return fmt.Sprintf("(%s --help lists the flags)", cmd.CommandPath())
}

// runAsked does what the flags ask for.
func runAsked(cmd *cobra.Command, flags *config.Flags, socket, version string, does actions) error {
	asked, err := flags.Version()
	if err != nil {
		return err
	}
	if asked != "" {
		printVersion(cmd.OutOrStdout(), version, asked)
		return nil
	}
	s, err := flags.Settings()
	if err != nil {
		return err
	}
	if err := s.ApplyLogging(); err != nil {
		return err
	}
	j := newJob(cmd, flags, s, version)
	j.socket = socket
	warn(j.log, s)
	return j.do(cmd.Context(), does)
}

func newJob(cmd *cobra.Command, flags *config.Flags, s config.Settings, version string) job {
	return job{Settings: s, flags: flags, given: values(cmd.Flags()), version: version, log: klog.Background()}
}

// values gives what flags are set to.
func values(set *pflag.FlagSet) map[string]string {
	list := map[string]string{}
	set.VisitAll(func(f *pflag.Flag) { list[f.Name] = f.Value.String() })
	return list
}

func printVersion(to io.Writer, version, asked string) {
	if asked == "raw" {
		fmt.Fprintf(to, "oneruled version %s, %s, %s/%s\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
		return
	}
	fmt.Fprintf(to, "oneruled version %s\n", version)
}

// warn logs what is accepted and may have another effect than expected.
func warn(log logr.Logger, s config.Settings) {
	for _, line := range s.Warnings {
		log.Info(line)
	}
}

// do chooses the action.
func (j job) do(ctx context.Context, does actions) error {
	switch {
	case j.flags.WriteConfigTo != "":
		if err := j.Write(j.flags.WriteConfigTo); err != nil {
			return err
		}
		j.log.Info("configuration written", "file", j.flags.WriteConfigTo)
		return nil
	case j.flags.Cleanup:
		return only(ctx, j, "--cleanup", does.cleanup)
	case j.flags.InitOnly:
		return only(ctx, j, "--init-only", does.initialize)
	}
	return does.start(ctx, j)
}

// only does what a flag asks for instead of serving.
func only(ctx context.Context, j job, flag string, does func(context.Context, job) error) error {
	if does == nil {
		return fmt.Errorf("%s: it is not built in", flag)
	}
	if err := does(ctx, j); err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	return nil
}
