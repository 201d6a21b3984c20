package openfile

// Open is Regular of a path whose file was exchanged after the look at it.
var Open = open
