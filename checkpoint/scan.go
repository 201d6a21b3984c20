package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	windowSize = 32 << 10
	maxRank    = 64  // dimensions of a tensor
	maxDepth   = 64  // of JSON that is passed over
	maxNumber  = 64  // characters of a number that is not
	shortest   = 256 // bytes of a string that begin gives all of
)

// scanner reads JSON from a file, through a window of fixed size, in one pass but for
// strings: these are passed over and measured first, and then read again into memory
// of their size. So what a file costs is what is kept of it. What nests deeper than is
// wanted is refused where it begins.
type scanner struct {
	r     io.ReaderAt
	start int64  // of the text in r
	size  int64  // of the text
	what  string // header, index or configuration: for errors
	loose bool   // NaN and Infinity, which Python writes, are passed over too
	depth int    // of objects inside objects of their own kind

	win  []byte // bytes base .. base+len(win) of the text
	base int64
	i    int   // the next byte in win
	err  error // of reading; the text then seems to end

	short [shortest]byte
	uints [maxRank]uint64
}

func newScanner(r io.ReaderAt, start, size int64, what string, b *budget) *scanner {
	return &scanner{r: r, start: start, size: size, what: what, win: b.window(size)}
}

// more reports whether there is a next byte.
func (s *scanner) more() bool { return s.i < len(s.win) || s.load(s.pos()) }

func (s *scanner) pos() int64 { return s.base + int64(s.i) }

// load moves the window to byte at of the text.
func (s *scanner) load(at int64) bool {
	s.base, s.i = at, 0
	n := min(int64(cap(s.win)), s.size-at)
	s.win = s.win[:0]
	if n <= 0 || s.err != nil {
		return false
	}
	if err := readFull(s.r, s.win[:n], s.start+at); err != nil {
		s.err = fmt.Errorf("reading the %s: %w", s.what, err)
		return false
	}
	s.win = s.win[:n]
	return true
}

// seek makes byte at of the text the next one.
func (s *scanner) seek(at int64) {
	if at >= s.base && at <= s.base+int64(len(s.win)) {
		s.i = int(at - s.base)
	} else {
		s.load(at)
	}
}

// readFull is ReadAt, but the end of the file is an error with a name: the size was asked
// for before, so the file has shrunk.
func readFull(r io.ReaderAt, b []byte, off int64) error {
	n, err := r.ReadAt(b, off)
	if n == len(b) {
		return nil
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%w: %w", ErrRead, err)
}

// peek is the next byte that is not white space, or 0 at the end.
func (s *scanner) peek() byte {
	for s.more() {
		switch c := s.win[s.i]; c {
		case ' ', '\t', '\n', '\r':
			s.i++
		default:
			return c
		}
	}
	return 0
}

// wanted is the error of finding something else.
func (s *scanner) wanted(what string) error {
	found := "the end of the " + s.what
	if s.more() {
		found = fmt.Sprintf("%q", s.win[s.i])
	}
	if s.err != nil {
		return s.err
	}
	return fmt.Errorf("the %s is not JSON of the form wanted: at byte %d stands %s, wanted %s", s.what, s.pos(), found, what)
}

// take passes over c, which is not 0.
func (s *scanner) take(c byte) error {
	if s.peek() != c {
		return s.wanted(fmt.Sprintf("%q", c))
	}
	s.i++
	return nil
}

// end demands that nothing follow.
func (s *scanner) end() error {
	if s.peek(); s.more() || s.err != nil {
		return s.wanted("nothing more")
	}
	return nil
}

// members reads an object, or an array: one is called at each of its members, for an
// object at the key.
func (s *scanner) members(open, shut byte, one func() error) error {
	if err := s.take(open); err != nil {
		return err
	}
	if s.peek() == shut {
		s.i++
		return nil
	}
	for {
		if err := one(); err != nil {
			return err
		}
		switch s.peek() {
		case ',':
			s.i++
		case shut:
			s.i++
			return nil
		default:
			return s.wanted(fmt.Sprintf("',' or %q", shut))
		}
	}
}

func (s *scanner) object(member func() error) error { return s.members('{', '}', member) }

func (s *scanner) array(element func() error) error { return s.members('[', ']', element) }

// numbers reads an array of at most maxRank unsigned integers. They are the scanner's.
func (s *scanner) numbers(most int) ([]uint64, error) {
	out := s.uints[:0]
	err := s.array(func() error {
		u, err := s.uint()
		if err == nil && len(out) == most {
			err = fmt.Errorf("an array has more than %d values", most)
		}
		if err == nil {
			out = append(out, u)
		}
		return err
	})
	return out, err
}

// uint reads an integer without sign, fraction or exponent.
func (s *scanner) uint() (uint64, error) {
	first := s.peek()
	start := s.pos()
	var u uint64
	for s.more() {
		c := s.win[s.i]
		if c < '0' || c > '9' {
			break
		}
		if u > (math.MaxUint64-uint64(c-'0'))/10 {
			return 0, fmt.Errorf("the number at byte %d of the %s overflows 64 bits", start, s.what)
		}
		u = u*10 + uint64(c-'0')
		s.i++
	}
	if s.pos() == start {
		return 0, s.wanted("a whole number")
	}
	if first == '0' && s.pos() > start+1 {
		s.seek(start)
		return 0, s.wanted("a number without leading zeros")
	}
	return u, nil
}

// number reads any number, as its characters; with a nil it is only passed over, however
// long it is.
func (s *scanner) number(to *[]byte) error {
	start := s.pos()
	take := func() error {
		if to != nil {
			if len(*to) == maxNumber {
				return fmt.Errorf("the number at byte %d of the %s has more than %d characters", start, s.what, maxNumber)
			}
			*to = append(*to, s.win[s.i])
		}
		s.i++
		return nil
	}
	any := func(of string) (bool, error) {
		for k := range len(of) {
			if s.more() && s.win[s.i] == of[k] {
				return true, take()
			}
		}
		return false, nil
	}
	digits := func() error {
		if !s.more() || s.win[s.i] < '0' || s.win[s.i] > '9' {
			return s.wanted("a digit")
		}
		for s.more() && s.win[s.i] >= '0' && s.win[s.i] <= '9' {
			if err := take(); err != nil {
				return err
			}
		}
		return nil
	}
	minus, err := any("-")
	if err != nil {
		return err
	}
	if minus && s.loose && to == nil && s.more() && s.win[s.i] == 'I' {
		return s.literal("Infinity")
	}
	if zero, err := any("0"); err != nil {
		return err
	} else if !zero {
		if err := digits(); err != nil {
			return err
		}
	}
	if point, err := any("."); err != nil {
		return err
	} else if point {
		if err := digits(); err != nil {
			return err
		}
	}
	if exponent, err := any("eE"); err != nil || !exponent {
		return err
	}
	if _, err := any("+-"); err != nil {
		return err
	}
	return digits()
}

// float reads a number; one beyond float64 is an error.
func (s *scanner) float() (float64, error) {
	if c := s.peek(); c != '-' && (c < '0' || c > '9') {
		return 0, s.wanted("a number")
	}
	var b [maxNumber]byte
	text := b[:0]
	start := s.pos()
	if err := s.number(&text); err != nil {
		return 0, err
	}
	x, err := strconv.ParseFloat(string(text), 64)
	if err != nil {
		return 0, fmt.Errorf("the number at byte %d of the %s, %s, overflows float64", start, s.what, text)
	}
	return x, nil
}

// literal passes over a word such as true.
func (s *scanner) literal(word string) error {
	s.peek()
	for i := range len(word) {
		if !s.more() || s.win[s.i] != word[i] {
			return s.wanted(strconv.Quote(word))
		}
		s.i++
	}
	return nil
}

// null passes over a null, if one is next.
func (s *scanner) null() (bool, error) {
	if s.peek() != 'n' {
		return false, nil
	}
	return true, s.literal("null")
}

// boolean reads true or false.
func (s *scanner) boolean() (bool, error) {
	switch s.peek() {
	case 't':
		return true, s.literal("true")
	case 'f':
		return false, s.literal("false")
	}
	return false, s.wanted("true or false")
}

// skip passes over any value.
func (s *scanner) skip() error { return s.skipAt(0) }

func (s *scanner) skipAt(depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("the %s nests deeper than %d at byte %d", s.what, maxDepth, s.pos())
	}
	switch c := s.peek(); c {
	case '{':
		return s.object(func() error {
			if _, err := s.pass(); err != nil {
				return err
			}
			if err := s.take(':'); err != nil {
				return err
			}
			return s.skipAt(depth + 1)
		})
	case '[':
		return s.array(func() error { return s.skipAt(depth + 1) })
	case '"':
		_, err := s.pass()
		return err
	case 't':
		return s.literal("true")
	case 'f':
		return s.literal("false")
	case 'n':
		return s.literal("null")
	default:
		if s.loose && c == 'N' {
			return s.literal("NaN")
		}
		if s.loose && c == 'I' {
			return s.literal("Infinity")
		}
		if c != '-' && (c < '0' || c > '9') {
			return s.wanted("a value")
		}
		return s.number(nil)
	}
}

// text is a string of the text that was passed over.
type text struct {
	at int64 // of its first character
	n  int   // bytes, escapes resolved
}

// pass passes over a string.
func (s *scanner) pass() (text, error) {
	if err := s.take('"'); err != nil {
		return text{}, err
	}
	t := text{at: s.pos()}
	var c [utf8.UTFMax]byte
	for {
		t.n += len(s.plain())
		n, err := s.char(&c, t.at)
		if n == 0 || err != nil {
			return t, err
		}
		t.n += n
	}
}

// read fills dst with the first bytes of a string that was passed over.
func (s *scanner) read(t text, dst []byte) error {
	s.seek(t.at)
	var c [utf8.UTFMax]byte
	for len(dst) > 0 {
		n := copy(dst, s.plain())
		if dst = dst[n:]; len(dst) == 0 {
			break
		}
		n, err := s.char(&c, t.at)
		if err == nil && n == 0 {
			err = s.changed()
		}
		if err != nil {
			return err
		}
		dst = dst[copy(dst, c[:n]):]
	}
	return nil
}

// changed is the error of a text that reads otherwise the second time.
func (s *scanner) changed() error {
	return fmt.Errorf("%w: the %s changed while it was read", ErrRead, s.what)
}

// plain passes over characters that stand for themselves, as far as the window has them.
func (s *scanner) plain() []byte {
	if !s.more() {
		return nil
	}
	run := s.win[s.i:]
	for i, c := range run {
		if c < ' ' || c >= utf8.RuneSelf || c == '"' || c == '\\' {
			run = run[:i]
			break
		}
	}
	s.i += len(run)
	return run
}

// char reads one character of the string that begins at byte start, and returns the
// length of its UTF-8: 0 for the quote at the end.
func (s *scanner) char(to *[utf8.UTFMax]byte, start int64) (int, error) {
	if !s.more() {
		return 0, s.wanted(`'"'`)
	}
	switch c := s.win[s.i]; {
	case c == '"':
		s.i++
		return 0, nil
	case c < ' ':
		return 0, s.wanted("no control character in a string")
	case c == '\\':
		r, err := s.escape(start)
		return utf8.EncodeRune(to[:], r), err
	case c < utf8.RuneSelf:
		to[0] = c
		s.i++
		return 1, nil
	}
	n := 0
	for n < len(to) && s.more() && (n == 0 || !utf8.RuneStart(s.win[s.i])) {
		to[n] = s.win[s.i]
		s.i++
		n++
	}
	if r, size := utf8.DecodeRune(to[:n]); r == utf8.RuneError && size < 2 || size != n {
		if s.err != nil {
			return 0, s.err
		}
		return 0, fmt.Errorf("the string at byte %d of the %s is not UTF-8", start, s.what)
	}
	return n, nil
}

// escape reads an escape, of two halves where it takes two.
func (s *scanner) escape(start int64) (rune, error) {
	r, err := s.oneEscape(start)
	if err != nil || !utf16.IsSurrogate(r) {
		return r, err
	}
	if s.more() && s.win[s.i] == '\\' {
		low, err := s.oneEscape(start)
		if err != nil {
			return 0, err
		}
		if r = utf16.DecodeRune(r, low); r != utf8.RuneError {
			return r, nil
		}
	}
	if s.err != nil {
		return 0, s.err
	}
	return 0, fmt.Errorf("the string at byte %d of the %s has half a surrogate pair", start, s.what)
}

func (s *scanner) oneEscape(start int64) (rune, error) {
	s.i++
	if !s.more() {
		return 0, s.wanted("an escaped character")
	}
	c := s.win[s.i]
	s.i++
	switch c {
	case '"', '\\', '/':
		return rune(c), nil
	case 'b':
		return '\b', nil
	case 'f':
		return '\f', nil
	case 'n':
		return '\n', nil
	case 'r':
		return '\r', nil
	case 't':
		return '\t', nil
	case 'u':
		var r rune
		for range 4 {
			if !s.more() {
				return 0, s.wanted("a hexadecimal digit")
			}
			d, ok := unhex(s.win[s.i])
			if !ok {
				return 0, s.wanted("a hexadecimal digit")
			}
			r = r<<4 | d
			s.i++
		}
		return r, nil
	}
	return 0, fmt.Errorf("the string at byte %d of the %s has an unknown escape, %q", start, s.what, "\\"+string(rune(c)))
}

func unhex(c byte) (rune, bool) {
	switch {
	case c >= '0' && c <= '9':
		return rune(c - '0'), true
	case c >= 'a' && c <= 'f':
		return rune(c-'a') + 10, true
	case c >= 'A' && c <= 'F':
		return rune(c-'A') + 10, true
	}
	return 0, false
}

// word reads a string that is compared with a few others, none of them long: all of a
// short one, the beginning of another. It is the scanner's until the next.
func (s *scanner) word() ([]byte, error) {
	t, err := s.pass()
	if err != nil {
		return nil, err
	}
	return s.begin(t)
}

// begin is the beginning of a string that was passed over.
func (s *scanner) begin(t text) ([]byte, error) {
	b := s.short[:min(t.n, len(s.short))]
	end := s.pos()
	err := s.read(t, b)
	s.seek(end)
	return b, err
}

// key reads the key of a member, and the colon.
func (s *scanner) key() ([]byte, error) {
	b, err := s.word()
	if err == nil {
		err = s.take(':')
	}
	return b, err
}

// in prefixes an error with what begins with a string that was passed over.
func (s *scanner) in(what string, t text, err error) error {
	name, failed := s.begin(t)
	if failed != nil {
		return failed
	}
	return fmt.Errorf("%s %q: %w", what, clip(string(name)), err)
}
