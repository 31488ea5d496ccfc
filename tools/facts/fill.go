package main

import (
	"fmt"
	"reflect"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// density is how many of the fields of an object get a value.
type density int

const (
	always density = iota
	sometimes
	never
)

// filler fills objects with values that differ from field to field and are the same in every run.
type filler struct {
	density density
	state   uint64
}

// next is a small linear congruential generator: the same in every run and on every machine.
func (f *filler) next(bound uint64) uint64 {
	f.state = f.state*6364136223846793005 + 1442695040888963407
	return (f.state >> 33) % bound
}

func (f *filler) fills() bool {
	return f.density == always || (f.density == sometimes && f.next(2) == 0)
}

// fill fills a value. `within` are the types that it stands in; schemas contain themselves.
func (f *filler) fill(value reflect.Value, within []reflect.Type) {
	if f.fillSpecial(value, within) {
		return
	}
	switch value.Kind() {
	case reflect.String:
		if f.fills() {
			value.SetString(fmt.Sprintf("text-%d <é&\"> ", f.next(1000)))
		}
	case reflect.Int32, reflect.Int64:
		if f.fills() {
			value.SetInt(int64(f.next(100_000)) - 20_000)
		}
	case reflect.Bool:
		value.SetBool(f.fills())
	case reflect.Float64:
		if f.fills() {
			value.SetFloat(float64(f.next(1000)) / 8)
		}
	case reflect.Struct:
		for index := range value.NumField() {
			if value.Type().Field(index).Type != reflect.TypeFor[metav1.TypeMeta]() {
				f.fill(value.Field(index), append(within, value.Type()))
			}
		}
	case reflect.Pointer:
		if f.fills() && !f.repeats(value.Type().Elem(), within) {
			value.Set(reflect.New(value.Type().Elem()))
			f.fill(value.Elem(), within)
		}
	case reflect.Slice:
		f.fillSlice(value, within)
	case reflect.Map:
		if f.fills() && !f.repeats(value.Type().Elem(), within) {
			value.Set(reflect.MakeMap(value.Type()))
			for range 2 {
				key, element := reflect.New(value.Type().Key()).Elem(), reflect.New(value.Type().Elem()).Elem()
				key.SetString(fmt.Sprintf("key-%d", f.next(1000)))
				f.fill(element, within)
				value.SetMapIndex(key, element)
			}
		}
	}
}

func (f *filler) fillSlice(value reflect.Value, within []reflect.Type) {
	if !f.fills() || f.repeats(value.Type().Elem(), within) {
		return
	}
	if value.Type().Elem().Kind() == reflect.Uint8 {
		value.SetBytes([]byte{0, 0xff, byte(f.next(256))})
		return
	}
	length := 1
	if value.Type().Elem().Kind() != reflect.Struct || f.density == sometimes {
		length = 2
	}
	value.Set(reflect.MakeSlice(value.Type(), length, length))
	for index := range length {
		f.fill(value.Index(index), within)
	}
}

func (f *filler) repeats(goType reflect.Type, within []reflect.Type) bool {
	for goType.Kind() == reflect.Pointer {
		goType = goType.Elem()
	}
	count := 0
	for _, outer := range within {
		if outer == goType {
			count++
		}
	}
	return count > 1 || len(within) > 12
}

func (f *filler) fillSpecial(value reflect.Value, within []reflect.Type) bool {
	if !value.CanAddr() {
		return false
	}
	if _, isSpecial := special[value.Type()]; !isSpecial {
		return false
	}
	if !f.fills() {
		return true
	}
	switch target := value.Addr().Interface().(type) {
	case *metav1.Time:
		*target = metav1.Unix(1_700_000_000+int64(f.next(1_000_000)), int64(f.next(1_000_000_000)))
	case *metav1.MicroTime:
		*target = metav1.NewMicroTime(time.Unix(1_700_000_000, int64(f.next(1_000_000_000))))
	case *metav1.Duration:
		target.Duration = time.Duration(f.next(1_000_000_000_000))
	case *metav1.FieldsV1:
		target.Raw = []byte(`{"f:metadata":{"f:labels":{".":{}}}}`)
	case *resource.Quantity:
		forms := []string{"0", "100m", "1Gi", "1.5Gi", "0.5", "1500M", "12e6", "2048Ki", "-3", "100n", "1e3"}
		*target = resource.MustParse(forms[f.next(uint64(len(forms)))])
	case *intstr.IntOrString:
		if f.next(2) == 0 {
			*target = intstr.FromInt32(int32(f.next(65_536)))
		} else {
			*target = intstr.FromString("25%")
		}
	case *runtime.RawExtension:
		target.Raw = []byte(`{"apiVersion":"v1","kind":"Thing","numbers":[1,2.5,-3]}`)
	case *apiextensionsv1.JSON:
		target.Raw = []byte(`{"any":["thing",null,1]}`)
	case *apiextensionsv1.JSONSchemaPropsOrBool:
		target.Allows = f.next(2) == 0
		f.fillSchema(&target.Schema, within)
	case *apiextensionsv1.JSONSchemaPropsOrArray:
		f.fillSchema(&target.Schema, within)
		if f.next(2) == 0 {
			target.JSONSchemas = []apiextensionsv1.JSONSchemaProps{{Type: "string"}, {ID: "x"}}
		}
	case *apiextensionsv1.JSONSchemaPropsOrStringArray:
		if f.next(2) == 0 {
			target.Property = []string{"one", "two"}
		} else {
			f.fillSchema(&target.Schema, within)
		}
	}
	return true
}

func (f *filler) fillSchema(target **apiextensionsv1.JSONSchemaProps, within []reflect.Type) {
	if !f.repeats(reflect.TypeFor[apiextensionsv1.JSONSchemaProps](), within) && f.next(3) != 0 {
		*target = &apiextensionsv1.JSONSchemaProps{}
		f.fill(reflect.ValueOf(*target).Elem(), within)
	}
}
