package main

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
)

// markers finds the `+name=value` lines in the comments of types and fields, which reflection does not see.
type markers struct {
	packages map[string]*source
}

type source struct {
	types     map[string]map[string][]string            // type, marker, values
	fields    map[string]map[string]map[string][]string // type, field, marker, values
	constants map[string]string                         // name, literal
}

func newMarkers() *markers {
	return &markers{packages: map[string]*source{}}
}

func (m *markers) ofType(goType reflect.Type) (map[string][]string, error) {
	source, err := m.source(goType.PkgPath())
	if err != nil {
		return nil, err
	}
	return source.types[goType.Name()], nil
}

func (m *markers) ofField(owner reflect.Type, field string) (map[string][]string, error) {
	source, err := m.source(owner.PkgPath())
	if err != nil {
		return nil, err
	}
	fields, isStruct := source.fields[owner.Name()]
	if _, declared := source.types[owner.Name()]; declared && !isStruct {
		// Declared as another type; that one is never patched or applied under this name.
		return nil, nil
	}
	found, known := fields[field]
	if !known {
		return nil, fmt.Errorf("not found in the source of %s", owner)
	}
	return found, nil
}

// defaultOf is the default of a field as JSON without spaces.
func (m *markers) defaultOf(owner reflect.Type, comments map[string][]string) (string, bool, error) {
	values := comments["default"]
	if len(values) == 0 {
		return "", false, nil
	}
	text := values[0]
	if reference, isReference := strings.CutPrefix(text, "ref("); isReference {
		reference = strings.TrimSuffix(reference, ")")
		path, name := owner.PkgPath(), reference
		if dot := strings.LastIndex(reference, "."); dot >= 0 {
			path, name = reference[:dot], reference[dot+1:]
		}
		source, err := m.source(path)
		if err != nil {
			return "", false, err
		}
		literal, known := source.constants[name]
		if !known {
			return "", false, fmt.Errorf("default refers to the unknown constant %s", reference)
		}
		text = literal
	}
	var value any
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		return "", false, fmt.Errorf("default %s: %w", text, err)
	}
	compact, err := json.Marshal(value)
	if err == nil && strings.ContainsAny(string(compact), " \n") {
		err = fmt.Errorf("default %s has spaces", compact)
	}
	return string(compact), true, err
}

func (m *markers) source(path string) (*source, error) {
	if found, known := m.packages[path]; known {
		return found, nil
	}
	folder, err := build.Default.Import(path, ".", build.FindOnly)
	if err != nil {
		return nil, err
	}
	read, err := readSource(folder.Dir)
	m.packages[path] = read
	return read, err
}

func readSource(folder string) (*source, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		return nil, err
	}
	found := &source{
		types:     map[string]map[string][]string{},
		fields:    map[string]map[string]map[string][]string{},
		constants: map[string]string{},
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") || strings.HasPrefix(filepath.Base(name), "zz_generated") {
			continue
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, content, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		for _, declaration := range file.Decls {
			if general, isGeneral := declaration.(*ast.GenDecl); isGeneral {
				found.read(file, general)
			}
		}
	}
	return found, nil
}

func (s *source) read(file *ast.File, declaration *ast.GenDecl) {
	for _, specification := range declaration.Specs {
		switch specification := specification.(type) {
		case *ast.TypeSpec:
			name := specification.Name.Name
			s.types[name] = readMarkers(declaration.Doc, specification.Doc, detached(file, declaration))
			structure, isStruct := specification.Type.(*ast.StructType)
			if !isStruct {
				continue
			}
			s.fields[name] = map[string]map[string][]string{}
			for _, field := range structure.Fields.List {
				read := readMarkers(field.Doc)
				for _, fieldName := range field.Names {
					s.fields[name][fieldName.Name] = read
				}
				if len(field.Names) == 0 {
					s.fields[name][embeddedName(field.Type)] = read
				}
			}
		case *ast.ValueSpec:
			for index, name := range specification.Names {
				if index < len(specification.Values) {
					if literal, isLiteral := specification.Values[index].(*ast.BasicLit); isLiteral {
						s.constants[name.Name] = jsonLiteral(literal)
					}
				}
			}
		}
	}
}

// detached is the comment that ends one blank line above a declaration, where older types keep their markers.
func detached(file *ast.File, declaration *ast.GenDecl) *ast.CommentGroup {
	start := declaration.Pos()
	if declaration.Doc != nil {
		start = declaration.Doc.Pos()
	}
	var closest *ast.CommentGroup
	for _, group := range file.Comments {
		if group.End() < start {
			closest = group
		}
	}
	if closest == nil {
		return nil
	}
	for _, other := range file.Decls {
		if other.Pos() < declaration.Pos() && other.End() > closest.Pos() {
			return nil
		}
	}
	return closest
}

func embeddedName(expression ast.Expr) string {
	switch expression := expression.(type) {
	case *ast.Ident:
		return expression.Name
	case *ast.SelectorExpr:
		return expression.Sel.Name
	case *ast.StarExpr:
		return embeddedName(expression.X)
	default:
		return ""
	}
}

func jsonLiteral(literal *ast.BasicLit) string {
	if literal.Kind != token.STRING {
		return literal.Value
	}
	text, err := strconv.Unquote(literal.Value)
	if err != nil {
		return literal.Value
	}
	quoted, _ := json.Marshal(text)
	return string(quoted)
}

func readMarkers(groups ...*ast.CommentGroup) map[string][]string {
	found := map[string][]string{}
	for _, group := range groups {
		if group == nil {
			continue
		}
		for _, comment := range group.List {
			text := strings.TrimSpace(strings.TrimPrefix(comment.Text, "//"))
			if marker, isMarker := strings.CutPrefix(text, "+"); isMarker {
				name, value, _ := strings.Cut(marker, "=")
				found[name] = append(found[name], value)
			}
		}
	}
	return found
}
