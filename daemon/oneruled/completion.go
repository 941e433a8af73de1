package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"onerule/daemon/oneruled/cli"
)

// completionCommand writes what makes a shell complete our commands and flags.
func completionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "completion SHELL",
		Short: "a script that makes bash, zsh or fish complete commands and flags",
		Long: `completion writes a script for a shell, bash, zsh or fish, that makes it complete the commands
and flags of oneruled. In bash that takes the package bash-completion.`,
		Example: `  source <(oneruled completion bash)
  oneruled completion bash > /etc/bash_completion.d/oneruled
  oneruled completion zsh > /usr/local/share/zsh/site-functions/_oneruled
  oneruled completion fish > ~/.config/fish/completions/oneruled.fish`,
		Annotations: cli.Codes("it is written", ""),
		ValidArgs:   []string{"bash", "zsh", "fish"},
		RunE: func(cmd *cobra.Command, args []string) error {
			root, w := cmd.Root(), cmd.OutOrStdout()
			shell := ""
			if len(args) == 1 {
				shell = args[0]
			}
			switch shell {
			case "bash":
				return root.GenBashCompletionV2(w, true)
			case "zsh":
				return root.GenZshCompletion(w)
			case "fish":
				return root.GenFishCompletion(w, true)
			}
			return fmt.Errorf("completion takes bash, zsh or fish, not %q (oneruled completion --help shows examples)", strings.Join(args, " "))
		},
	}
}
