#include "client/core/image/text.h"

#include <gtest/gtest.h>

namespace ckptd {
namespace {

TEST(Text, Utf8) {
  for (const char* good :
       {"", "plain", "gr\xc3\xbc\xc3\x9f", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xed\x9f\xbf", "\xf4\x8f\xbf\xbf"})
    EXPECT_EQ(ValidUtf8Prefix(good), std::string_view(good).size()) << good;
  for (const char* bad : {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xed\xa0\x80", "\xf0\x80\x80\x80",
                          "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xc3", "\xe2\x82", "\xf0\x9f\x98", "\xc3("})
    EXPECT_EQ(ValidUtf8Prefix(std::string("ab") + bad), 2U) << bad;
}

TEST(Text, AppendUtf8AgreesWithTheCheck) {
  for (uint32_t code : {0U, 0x7FU, 0x80U, 0x7FFU, 0x800U, 0xFFFFU, 0x10000U, 0x10FFFFU}) {
    std::string text;
    AppendUtf8(code, &text);
    EXPECT_EQ(ValidUtf8Prefix(text), text.size()) << code;
  }
}

TEST(Text, Escapes) {
  std::string out;
  AppendEscaped(std::string_view("a\"b\\c\n\t\x01\x00\x7f\xc3\xbc", 12), &out);
  EXPECT_EQ(out, "a\\\"b\\\\c\\n\\t\\u0001\\u0000\x7f\xc3\xbc");
}

TEST(Text, QuotedIsShortAndClean) {
  EXPECT_EQ(Quoted("x\n"), "\"x\\n\"");
  EXPECT_EQ(Quoted("x\xff"), "\"x...\"");
  EXPECT_LT(Quoted(std::string(100000, 'x')).size(), 210U);
}

}  // namespace
}  // namespace ckptd
