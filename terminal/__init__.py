"""What the commands share: command-line helpers, prompt files, colours, the summary."""
