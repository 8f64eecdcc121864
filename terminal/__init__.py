"""What the commands share: manners, prompt files, colours, the summary."""
