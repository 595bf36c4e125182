"""What a person sees: progress that says what it waits for, tables; plain lines off a terminal."""
