// What GitOps tools make of an object: kstatus by cli-utils' own code, and Lua scripts in a virtual machine that has
// the libraries which Argo CD gives its scripts and no others. Each line of standard input is a question in JSON, each
// line of standard output its answer.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"time"

	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

type question struct {
	// Script is empty to ask kstatus.
	Script string         `json:"script"`
	Object map[string]any `json:"object"`
}

type answer struct {
	Value any    `json:"value"`
	Error string `json:"error,omitempty"`
}

func main() {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(make([]byte, 0, 1<<20), 16<<20)
	for in.Scan() {
		var asked question
		var told answer
		err := json.Unmarshal(in.Bytes(), &asked)
		if err == nil {
			told.Value, err = ask(asked)
		}
		if err != nil {
			told.Error = err.Error()
		}
		line, err := json.Marshal(told)
		if err != nil {
			line = []byte(`{"error": "the answer is not JSON"}`)
		}
		fmt.Println(string(line))
	}
}

func ask(asked question) (any, error) {
	if asked.Script == "" {
		whole(asked.Object)
		result, err := status.Compute(&unstructured.Unstructured{Object: asked.Object})
		if err != nil {
			return nil, err
		}
		return result.Status.String(), nil
	}
	return run(asked.Script, asked.Object)
}

// whole makes int64 of numbers that are whole, as the API machinery wants them.
func whole(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key := range v {
			v[key] = whole(v[key])
		}
	case []any:
		for i := range v {
			v[i] = whole(v[i])
		}
	case float64:
		if v == float64(int64(v)) {
			return int64(v)
		}
	}
	return value
}

func run(script string, object map[string]any) (any, error) {
	l := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer l.Close()
	for name, open := range map[string]lua.LGFunction{
		lua.LoadLibName: lua.OpenPackage, lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable,
	} {
		l.Push(l.NewFunction(open))
		l.Push(lua.LString(name))
		l.Call(1, 0)
	}
	safe := l.NewTable()
	l.SetField(safe, "time", l.NewFunction(func(l *lua.LState) int {
		l.Push(lua.LNumber(time.Now().Unix()))
		return 1
	}))
	l.SetGlobal("os", safe)
	l.SetGlobal("obj", toLua(l, object))
	if err := l.DoString(script); err != nil {
		return nil, err
	}
	return fromLua(l.Get(-1)), nil
}

func toLua(l *lua.LState, value any) lua.LValue {
	switch v := value.(type) {
	case map[string]any:
		table := l.NewTable()
		for key, field := range v {
			table.RawSetString(key, toLua(l, field))
		}
		return table
	case []any:
		table := l.NewTable()
		for _, item := range v {
			table.Append(toLua(l, item))
		}
		return table
	case string:
		return lua.LString(v)
	case float64:
		return lua.LNumber(v)
	case bool:
		return lua.LBool(v)
	}
	return lua.LNil
}

func fromLua(value lua.LValue) any {
	switch v := value.(type) {
	case *lua.LTable:
		if v.MaxN() > 0 {
			list := make([]any, 0, v.MaxN())
			for i := 1; i <= v.MaxN(); i++ {
				list = append(list, fromLua(v.RawGetInt(i)))
			}
			return list
		}
		fields := map[string]any{}
		v.ForEach(func(key, field lua.LValue) { fields[key.String()] = fromLua(field) })
		return fields
	case lua.LString:
		return string(v)
	case lua.LNumber:
		return float64(v)
	case lua.LBool:
		return bool(v)
	}
	return nil
}
