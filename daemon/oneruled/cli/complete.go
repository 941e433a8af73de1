package cli

import "github.com/spf13/cobra"

// completes says what a shell can complete of commands: their flags, and no files.
func completes(list ...*cobra.Command) []*cobra.Command {
	for _, cmd := range list {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	return list
}

// choices has a shell complete the values of a flag. It is for flags that a command has.
func choices(cmd *cobra.Command, flag string, values ...cobra.Completion) {
	if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // there is no such flag
	}
}
