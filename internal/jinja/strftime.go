package jinja

import (
	"fmt"
	"strings"
	"time"
)

// layouts are the directives of strftime as Go's layouts, in the locale C.
var layouts = map[byte]string{
	'a': "Mon", 'A': "Monday", 'b': "Jan", 'h': "Jan", 'B': "January", 'd': "02", 'e': "_2", 'H': "15", 'I': "03", 'j': "002",
	'm': "01", 'M': "04", 'p': "PM", 'S': "05", 'y': "06", 'Y': "2006", 'F': "2006-01-02", 'T': "15:04:05", 'R': "15:04",
	'D': "01/02/06", 'c': "Mon Jan _2 15:04:05 2006", 'x': "01/02/06", 'X': "15:04:05",
}

// strftime formats a time; a minus behind the percent sign removes zeros in front.
func strftime(t time.Time, format string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		short := format[i] == '-' && i+1 < len(format)
		if short {
			i++
		}
		layout, ok := layouts[format[i]]
		switch {
		case format[i] == '%':
			b.WriteByte('%')
		case !ok:
			return "", fmt.Errorf("strftime_now: %%%c is not supported", format[i])
		case short && strings.IndexByte("dHIjmMSye", format[i]) >= 0:
			text := strings.TrimLeft(t.Format(layout), " 0")
			if text == "" {
				text = "0"
			}
			b.WriteString(text)
		default:
			b.WriteString(t.Format(layout))
		}
	}
	return b.String(), nil
}
