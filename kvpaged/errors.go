package kvpaged

import "errors"

// All errors of this package wrap one of these; the text around them has the
// names and numbers.
var (
	// ErrConfig: New or ArenaBytes was given a Config that makes no cache.
	ErrConfig = errors.New("kvpaged: bad config")
	// ErrFormat: there is no such format.
	ErrFormat = errors.New("kvpaged: unknown format")
	// ErrShape: a slice does not have the length that the other arguments imply.
	ErrShape = errors.New("kvpaged: wrong length")
	// ErrRange: a layer, position or number of tokens is outside what there is.
	ErrRange = errors.New("kvpaged: out of range")
	// ErrPage: a page table names a page that the cache does not have or one page
	// twice, is too short, has no page where one is needed, or contradicts its slot
	// mapping.
	ErrPage = errors.New("kvpaged: bad page table")
	// ErrOwned: a page table from outside was given to a cache that owns its
	// pages. Only caches of Config.Adopted take page numbers; sequences of others
	// share pages by Seq.Fork.
	ErrOwned = errors.New("kvpaged: the cache owns its pages")
	// ErrShared: a new token's slot is in a page that other sequences hold too,
	// in a cache of Config.Adopted.
	ErrShared = errors.New("kvpaged: page is shared")
	// ErrFull: too few pages are free. Nothing was taken.
	ErrFull = errors.New("kvpaged: cache is full")
	// ErrBusy: a lease stands in the way. Nothing was changed.
	ErrBusy = errors.New("kvpaged: in use")
	// ErrClosed: the cache is closed or the sequence is freed, or it is nil or a
	// zero value.
	ErrClosed = errors.New("kvpaged: closed")
)
