package jinja

import (
	"strings"
	"unicode"
)

// superscripts are the characters that are digits for Python and no decimal digits: those of Numeric_Type Digit, which Go has no
// table of.
var superscripts = &unicode.RangeTable{
	R16: []unicode.Range16{
		{0xb2, 0xb3, 1}, {0xb9, 0xb9, 1}, {0x1369, 0x1371, 1}, {0x19da, 0x19da, 1}, {0x2070, 0x2070, 1}, {0x2074, 0x2079, 1},
		{0x2080, 0x2089, 1}, {0x2460, 0x2468, 1}, {0x2474, 0x247c, 1}, {0x2488, 0x2490, 1}, {0x24ea, 0x24ea, 1},
		{0x24f5, 0x24fd, 1}, {0x24ff, 0x24ff, 1}, {0x2776, 0x277e, 1}, {0x2780, 0x2788, 1}, {0x278a, 0x2792, 1},
	},
	R32: []unicode.Range32{
		{0x10a40, 0x10a43, 1}, {0x10e60, 0x10e68, 1}, {0x11052, 0x1105a, 1}, {0x1f100, 0x1f10a, 1},
	},
	LatinOffset: 2,
}

// numerals are the letters that stand for numbers: those of Numeric_Type Numeric.
const numerals = "㐅㒃㠪㭍一七万三九二五亖亿什仟仨伍佰億兆兩八六十千卄卅卌叁参參叄四壱壹幺廾廿弌弍" +
	"弎弐拾捌柒漆玖百肆萬貮貳贰阡陆陌陸零\uf96b\uf973\uf978\uf9b2\uf9d1\uf9d3\uf9fd𠀁𠁤𠃢𠄡𠤪𠦃𠦌𠦜𠫪𠫽𠬙𢎐𢦘𣬛𦉭\U0002f890"

func isDigit(r rune) bool { return unicode.IsDigit(r) || unicode.Is(superscripts, r) }

func isNumeric(r rune) bool { return unicode.IsNumber(r) || strings.ContainsRune(numerals, r) }

// isUpper and isLower are Unicode's properties Uppercase and Lowercase: letters, and others that have case.
func isUpper(r rune) bool { return unicode.IsUpper(r) || unicode.Is(unicode.Other_Uppercase, r) }

func isLower(r rune) bool { return unicode.IsLower(r) || unicode.Is(unicode.Other_Lowercase, r) }

// isCased reports whether r has case.
func isCased(r rune) bool { return isUpper(r) || isLower(r) || unicode.IsTitle(r) }
