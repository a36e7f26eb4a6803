package open

// Linux is there on one system only.
func Linux() {}
