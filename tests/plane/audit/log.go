package audit

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"
)

// Log writes the two files. A nil file is not written.
type Log struct {
	mu     sync.Mutex
	writes *os.File
	reads  *os.File
	known  map[Read]bool
}

// Open appends to the files named; an empty name means no such log.
func Open(writes, reads string) (*Log, error) {
	log := &Log{known: map[Read]bool{}}
	for _, f := range []struct {
		path string
		file **os.File
	}{{writes, &log.writes}, {reads, &log.reads}} {
		if f.path == "" {
			continue
		}
		file, err := os.OpenFile(f.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return nil, fmt.Errorf("audit log: %w", err)
		}
		*f.file = file
	}
	return log, nil
}

func (l *Log) write(e *Entry) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return appendLine(l.writes, e)
}

// read writes the line the first time it is seen.
func (l *Log) read(r Read) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reads == nil || l.known[r] {
		return nil
	}
	l.known[r] = true
	return appendLine(l.reads, r)
}

// appendLine writes in one call, so that a reader never sees half a line of another writer.
func appendLine(file *os.File, line any) error {
	if file == nil {
		return nil
	}
	data, err := json.Marshal(line)
	if err != nil {
		return err
	}
	_, err = file.Write(append(data, '\n'))
	return err
}
