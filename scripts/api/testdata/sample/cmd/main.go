package main

// Exported is in a program.
func Exported() {}

func main() {}
