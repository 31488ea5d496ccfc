package main

import (
	"errors"
	"fmt"
	"log"
	"strconv"
	"time"
)

// edgeMap is a graph as a map of vertices and a map of edges, with no index from a vertex to its edges: whoever wants a
// vertex's neighbours looks at every edge. It is the plain form of the graph that reference/kubeblocks.md describes in
// section 2.1, with the costs listed there and nothing added to them.
type edgeMap struct {
	vertices map[any]any
	edges    map[*link]*link
}

type link struct{ source, target any }

type object struct{ name string }

func newEdgeMap() *edgeMap {
	return &edgeMap{vertices: map[any]any{}, edges: map[*link]*link{}}
}

func (g *edgeMap) successors(vertex any) []any {
	found := []any{}
	for edge := range g.edges {
		if edge.source == vertex {
			found = append(found, edge.target)
		}
	}
	return found
}

func (g *edgeMap) predecessors(vertex any) []any {
	found := []any{}
	for edge := range g.edges {
		if edge.target == vertex {
			found = append(found, edge.source)
		}
	}
	return found
}

// root returns the only vertex without predecessors, or nil.
func (g *edgeMap) root() any {
	var root any
	for vertex := range g.vertices {
		if len(g.predecessors(vertex)) > 0 {
			continue
		}
		if root != nil {
			return nil
		}
		root = vertex
	}
	return root
}

func (g *edgeMap) connect(source, target any) {
	for edge := range g.edges {
		if edge.source == source && edge.target == target {
			return
		}
	}
	edge := &link{source, target}
	g.edges[edge] = edge
}

func (g *edgeMap) addUnderRoot(vertex any) error {
	root := g.root()
	if root == nil {
		return errors.New("no single root")
	}
	g.vertices[vertex] = vertex
	g.connect(root, vertex)
	return nil
}

func (g *edgeMap) validate() error {
	if g.root() == nil {
		return errors.New("no single root")
	}
	for edge := range g.edges {
		if edge.source == edge.target {
			return fmt.Errorf("%v depends on itself", edge.source)
		}
	}
	const open, closed = 1, 2
	state := map[any]int{}
	var visit func(vertex any) error
	visit = func(vertex any) error {
		switch state[vertex] {
		case open:
			return fmt.Errorf("cycle through %v", vertex)
		case closed:
			return nil
		}
		state[vertex] = open
		for _, next := range g.successors(vertex) {
			if err := visit(next); err != nil {
				return err
			}
		}
		state[vertex] = closed
		return nil
	}
	for vertex := range g.vertices {
		if err := visit(vertex); err != nil {
			return err
		}
	}
	return nil
}

// walkReverse validates, then visits every vertex after all that it points at.
func (g *edgeMap) walkReverse(do func(vertex any)) error {
	if err := g.validate(); err != nil {
		return err
	}
	visited := map[any]bool{}
	var visit func(vertex any)
	visit = func(vertex any) {
		if visited[vertex] {
			return
		}
		visited[vertex] = true
		for _, next := range g.successors(vertex) {
			visit(next)
		}
		do(vertex)
	}
	for vertex := range g.vertices {
		visit(vertex)
	}
	return nil
}

func graphPeer(arguments []string) any {
	if len(arguments) != 1 {
		log.Fatal("usage: peers graph CHILDREN")
	}
	children, err := strconv.Atoi(arguments[0])
	if err != nil {
		log.Fatalf("number of children: %v", err)
	}
	measured, err := graphBench(children)
	if err != nil {
		log.Fatal(err)
	}
	return measured
}

// graphBench measures, once, how long it takes to build a root with so many children, validate it and walk it.
func graphBench(children int) (map[string]any, error) {
	objects := make([]*object, children+1)
	for i := range objects {
		objects[i] = &object{name: fmt.Sprintf("object-%d", i)}
	}

	began := time.Now()
	graph := newEdgeMap()
	graph.vertices[objects[0]] = objects[0]
	for _, child := range objects[1:] {
		if err := graph.addUnderRoot(child); err != nil {
			return nil, err
		}
	}
	walked := 0
	if err := graph.walkReverse(func(any) { walked++ }); err != nil {
		return nil, err
	}
	took := time.Since(began)

	if walked != children+1 {
		return nil, fmt.Errorf("walked %d of %d vertices", walked, children+1)
	}
	return map[string]any{"children": children, "seconds": took.Seconds()}, nil
}
