// Package hidden is not public.
package hidden

// Name is not public.
const Name = 1
