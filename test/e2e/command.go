package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"onerule/test/cluster"
)

func newCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "e2e",
		Short: "a real Kubernetes cluster on this machine, and upstream's own tests in it",
		Long: "e2e runs a real Kubernetes cluster on this machine, without Docker: nodes are\n" +
			"namespaces. Nothing on the machine's network changes. It needs root.",
		SilenceUsage: true, SilenceErrors: true, TraverseChildren: true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	var dir string
	root.PersistentFlags().StringVar(&dir, "dir", cluster.DefaultDir, "folder of the cluster's state")
	root.AddCommand(buildCommand(), upCommand(&dir), downCommand(&dir), kubectlCommand(&dir), inCommand(&dir), runCommand(&dir))
	return root
}

func buildCommand() *cobra.Command {
	missing := false
	cmd := &cobra.Command{
		Use: "build", Short: "build the pieces of a cluster that are missing: half an hour the first time",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cache, err := cluster.DefaultCache(cmd.Context())
			if err != nil {
				return err
			}
			if missing {
				for _, name := range cache.Missing() {
					fmt.Fprintln(cmd.OutOrStdout(), name)
				}
				return nil
			}
			return cache.Build(cmd.Context(), cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&missing, "missing", false, "only list them, one a line")
	return cmd
}

// clusterFlags are what a cluster is started with.
func clusterFlags(flags *pflag.FlagSet, o *cluster.Options) {
	flags.IntVar(&o.Nodes, "nodes", 2, "number of nodes")
	flags.StringVar((*string)(&o.Family), "ip-family", string(cluster.IPv4), "IP families: ipv4, dual (IPv4 first), dual6 (IPv6 first) or ipv6")
	flags.StringVar(&o.With, "with", cluster.Onerule, "what connects pods and serves Services: onerule (image and manifest, as\n"+
		"users install it), onerule-binaries, kube-proxy or kube-proxy-iptables (with\nptp and host-local), or nothing")
}

func upCommand(dir *string) *cobra.Command {
	var o cluster.Options
	cmd := &cobra.Command{
		Use: "up", Short: "start a cluster that stays",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Dir, o.Stay, o.Out = *dir, true, cmd.OutOrStdout()
			c, err := cluster.Up(cmd.Context(), o)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "kubectl: bin/e2e kubectl get pods -A\non a node: bin/e2e in n1 nft list tables\nlogs: %s/*/log\n", c.Dir())
			return nil
		},
	}
	clusterFlags(cmd.Flags(), &o)
	return cmd
}

func downCommand(dir *string) *cobra.Command {
	return &cobra.Command{
		Use: "down", Short: "end the cluster and remove its state",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return cluster.Down(*dir) },
	}
}

func kubectlCommand(dir *string) *cobra.Command {
	return &cobra.Command{
		Use: "kubectl ARGS...", Short: "kubectl as the cluster's administrator",
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && (args[0] == "--help" || args[0] == "-h") {
				return cmd.Help()
			}
			c, err := cluster.Open(cmd.Context(), *dir)
			if err != nil {
				return err
			}
			return attached(c.Kubectl(cmd.Context(), args...))
		},
	}
}

func inCommand(dir *string) *cobra.Command {
	cmd := &cobra.Command{
		Use: "in NODE CMD...", Short: "run a command in the namespaces of a node, or of control",
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := cluster.Open(cmd.Context(), *dir)
			if err != nil {
				return err
			}
			m, err := machine(c, args[0])
			if err != nil {
				return err
			}
			return attached(m.Command(cmd.Context(), args[1:]...))
		},
	}
	cmd.Flags().SetInterspersed(false)
	return cmd
}

func machine(c *cluster.Cluster, name string) (*cluster.Machine, error) {
	for _, m := range append([]*cluster.Machine{c.Control()}, c.Nodes()...) {
		if m.Name() == name {
			return m, nil
		}
	}
	return nil, fmt.Errorf("no machine %s: there are control and n1 to n%d", name, len(c.Nodes()))
}

// attached runs a command with our terminal.
func attached(cmd *exec.Cmd) error {
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err := cmd.Run()
	var ended *exec.ExitError
	if errors.As(err, &ended) && ended.ExitCode() > 0 {
		return exitCode(ended.ExitCode())
	}
	return err
}
