package main

import (
	"fmt"
	"go/types"
	"slices"
	"strings"
)

// describe lists what pkg exports, one line for each item: constants with their
// values, variables, functions, types, the fields and embedded fields of structs,
// the methods of interfaces, and the whole method set of every other type, promoted
// methods included. Types of other packages carry their import path; parameters
// have no names, since renaming one changes nothing for a caller.
func describe(pkg *types.Package) []string {
	d := describer{pkg: pkg}
	for _, name := range pkg.Scope().Names() {
		if obj := pkg.Scope().Lookup(name); obj.Exported() {
			d.object(obj)
		}
	}
	return d.items
}

type describer struct {
	pkg   *types.Package
	items []string
}

func (d *describer) add(format string, args ...any) {
	d.items = append(d.items, "pkg "+d.pkg.Path()+", "+fmt.Sprintf(format, args...))
}

func (d *describer) object(obj types.Object) {
	switch obj := obj.(type) {
	case *types.Const:
		d.add("const %s %s = %s", obj.Name(), d.text(obj.Type()), obj.Val().ExactString())
	case *types.Var:
		d.add("var %s %s", obj.Name(), d.text(obj.Type()))
	case *types.Func:
		d.add("func %s", d.function(obj))
	case *types.TypeName:
		d.typeName(obj)
	}
}

func (d *describer) typeName(obj *types.TypeName) {
	if alias, ok := obj.Type().(*types.Alias); ok {
		d.add("type %s%s = %s", obj.Name(), d.params(alias.TypeParams()), d.text(alias.Rhs()))
		return
	}

	named := obj.Type().(*types.Named)
	head := obj.Name() + d.params(named.TypeParams())
	switch under := named.Underlying().(type) {
	case *types.Struct:
		d.add("type %s struct", head)
		d.fields(obj.Name(), under)
	case *types.Interface:
		d.add("type %s interface", head)
		d.interfaceMembers(obj.Name(), under)
		return
	default:
		d.add("type %s %s", head, d.text(under))
	}
	d.methods(obj.Name(), named)
}

func (d *describer) fields(name string, s *types.Struct) {
	hidden := false
	for i := range s.NumFields() {
		f := s.Field(i)
		switch {
		case f.Embedded():
			d.add("type %s struct, embedded %s %s%s", name, f.Name(), d.text(f.Type()), tag(s.Tag(i)))
		case f.Exported():
			d.add("type %s struct, %s %s%s", name, f.Name(), d.text(f.Type()), tag(s.Tag(i)))
		default:
			hidden = true
		}
	}
	if hidden {
		d.add("type %s struct, unexported fields", name)
	}
}

func tag(s string) string {
	if s == "" {
		return ""
	}
	return fmt.Sprintf(" %q", s)
}

func (d *describer) interfaceMembers(name string, i *types.Interface) {
	hidden := false
	for m := range i.Methods() {
		if m.Exported() {
			d.add("type %s interface, %s", name, d.function(m))
		} else {
			hidden = true
		}
	}
	if hidden {
		d.add("type %s interface, unexported methods", name)
	}
	for e := range i.EmbeddedTypes() {
		if _, plain := e.Underlying().(*types.Interface); !plain || e.String() == "comparable" {
			d.add("type %s interface, in %s", name, d.text(e))
		}
	}
}

// methods lists the exported methods in the method set of *T, each with the
// smaller receiver that has it.
func (d *describer) methods(name string, named *types.Named) {
	byValue := types.NewMethodSet(named)
	for sel := range types.NewMethodSet(types.NewPointer(named)).Methods() {
		m := sel.Obj().(*types.Func)
		if !m.Exported() {
			continue
		}
		receiver := "*" + name
		if byValue.Lookup(m.Pkg(), m.Name()) != nil {
			receiver = name
		}
		d.add("method (%s) %s%s", receiver, m.Name(), strings.TrimPrefix(d.text(sel.Type()), "func"))
	}
}

// function writes the name, type parameters and signature of f.
func (d *describer) function(f *types.Func) string {
	sig := f.Signature()
	return f.Name() + d.params(sig.TypeParams()) + strings.TrimPrefix(d.text(sig), "func")
}

func (d *describer) params(list *types.TypeParamList) string {
	if list.Len() == 0 {
		return ""
	}
	var out []string
	for p := range list.TypeParams() {
		out = append(out, p.Obj().Name()+" "+d.text(p.Constraint()))
	}
	return "[" + strings.Join(out, ", ") + "]"
}

func (d *describer) text(t types.Type) string {
	return types.TypeString(unnamed(t), func(p *types.Package) string {
		if p == d.pkg {
			return ""
		}
		return p.Path()
	})
}

// unnamed is t without the names of parameters in the function types it is made of.
func unnamed(t types.Type) types.Type {
	switch t := t.(type) {
	case *types.Signature:
		return types.NewSignatureType(nil, nil, nil, unnamedTuple(t.Params()), unnamedTuple(t.Results()), t.Variadic())
	case *types.Pointer:
		return types.NewPointer(unnamed(t.Elem()))
	case *types.Slice:
		return types.NewSlice(unnamed(t.Elem()))
	case *types.Array:
		return types.NewArray(unnamed(t.Elem()), t.Len())
	case *types.Map:
		return types.NewMap(unnamed(t.Key()), unnamed(t.Elem()))
	case *types.Chan:
		return types.NewChan(t.Dir(), unnamed(t.Elem()))
	}
	return t
}

func unnamedTuple(t *types.Tuple) *types.Tuple {
	vars := slices.Collect(t.Variables())
	for i, v := range vars {
		vars[i] = types.NewParam(v.Pos(), v.Pkg(), "", unnamed(v.Type()))
	}
	return types.NewTuple(vars...)
}
