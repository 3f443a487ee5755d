#include "daemon/json/reader.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <chrono>
#include <limits>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/json/printer.h"
#include "daemon/json/testing/json_test.pb.h"

namespace ckptd {
namespace {

using testing::Everything;
using ::testing::HasSubstr;

Everything Full() {
  Everything message;
  message.set_i32(-5);
  message.set_i64(std::numeric_limits<int64_t>::min());
  message.set_u32(std::numeric_limits<uint32_t>::max());
  message.set_u64(std::numeric_limits<uint64_t>::max());
  message.set_number(1e-300);
  message.set_small(3.5F);
  message.set_flag(true);
  message.set_text("a \"b\" \n \xc3\xa4");
  message.set_raw(std::string("\0\xff", 2));
  message.set_colour(testing::BLUE);
  message.mutable_leaf()->set_name("leaf");
  message.set_maybe(0);
  message.add_counts(7);
  message.add_counts(0);
  message.add_files()->set_size(1);
  message.add_files();
  message.add_colours(testing::RED);
  message.add_blobs("x");
  (*message.mutable_by_name())["k\"1"] = 1;
  (*message.mutable_by_name())[""] = 2;
  (*message.mutable_by_number())[-3].set_name("minus three");
  (*message.mutable_by_flag())[true] = "yes";
  message.mutable_tree()->set_size(9);
  message.mutable_inner()->mutable_inner()->set_last(3);
  return message;
}

absl::Status Read(absl::string_view text, const JsonLimits& limits = {}) {
  Everything message;
  return ReadJson(text, limits, &message);
}

std::string ErrorOf(absl::string_view text, const JsonLimits& limits = {}) {
  absl::Status status = Read(text, limits);
  EXPECT_EQ(CodeOf(status), ErrorCode::CORRUPT) << text.substr(0, 100);
  return std::string(status.message());
}

TEST(Reader, RoundTripsBothStyles) {
  for (const Everything& message : {Full(), Everything()}) {
    for (JsonStyle style : {JsonStyle::kCompact, JsonStyle::kIndented}) {
      Everything read;
      read.set_last(99);  // must be replaced
      absl::Status status = ReadJson(PrintJson(message, style), JsonLimits{}, &read);
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(message, read)) << read.DebugString();
    }
  }
}

TEST(Reader, PresenceSurvives) {
  Everything read;
  ASSERT_TRUE(ReadJson(PrintJson(Full(), JsonStyle::kCompact), JsonLimits{}, &read).ok());
  EXPECT_TRUE(read.has_maybe());
  EXPECT_FALSE(read.inner().has_maybe());
  EXPECT_FALSE(read.inner().has_leaf());
  EXPECT_EQ(read.choice_case(), Everything::kTree);
}

TEST(Reader, NonFiniteFloatsTravelAsStrings) {
  Everything read;
  ASSERT_TRUE(ReadJson(R"({"number":"NaN","small":"-Infinity"})", JsonLimits{}, &read).ok());
  EXPECT_TRUE(std::isnan(read.number()));
  EXPECT_EQ(read.small(), -std::numeric_limits<float>::infinity());
}

TEST(Reader, TruncatedAtEveryByteIsAnError) {
  std::string text = PrintJson(Full(), JsonStyle::kCompact);
  for (size_t length = 0; length < text.size(); ++length) {
    Everything read = Full();
    EXPECT_FALSE(ReadJson(absl::string_view(text).substr(0, length), JsonLimits{}, &read).ok()) << length;
    EXPECT_EQ(read.ByteSizeLong(), 0U) << length;
  }
}

TEST(Reader, EveryFlippedByteIsReadOrRefused) {
  std::string text = PrintJson(Full(), JsonStyle::kCompact);
  int refused = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    for (char flip : {'\x01', '\x20', '\x80'}) {
      std::string damaged = text;
      damaged[i] = static_cast<char>(damaged[i] ^ flip);
      refused += Read(damaged, {.unknown_fields = UnknownFields::kRefuse}).ok() ? 0 : 1;
    }
  }
  EXPECT_GT(refused, static_cast<int>(text.size()));
}

TEST(Reader, ErrorsNameThePlace) {
  EXPECT_THAT(ErrorOf(R"({"files":[{},{"size":1},{"size":"x"}]})"),
              HasSubstr("files[2].size: expected an integer from 0 to 18446744073709551615, got \"x\" (near byte 3"));
  EXPECT_THAT(ErrorOf(R"({"inner":{"by_number":{"7":{"name":3}}}})"), HasSubstr("inner.by_number[\"7\"].name: "));
  EXPECT_THAT(ErrorOf("{\"text\":\"\xff\"}"), HasSubstr("text: not JSON: "));
  EXPECT_THAT(ErrorOf("[]"), HasSubstr("the top level: expected an object"));
}

TEST(Reader, TypesAreStrict) {
  for (const char* text : {R"({"u32":-1})",
                           R"({"u32":4294967296})",
                           R"({"u32":1.0})",
                           R"({"u32":1e3})",
                           R"({"u32":"1"})",
                           R"({"u32":true})",
                           R"({"i32":2147483648})",
                           R"({"i64":9223372036854775808})",
                           R"({"i64":-9223372036854775809})",
                           R"({"u64":18446744073709551616})",
                           R"({"u64":1e400})",
                           R"({"small":1e39})",
                           R"({"number":"1"})",
                           R"({"flag":1})",
                           R"({"text":1})",
                           R"({"raw":"abc"})",
                           R"({"raw":"zz"})",
                           R"({"colour":"GREEN"})",
                           R"({"colour":1.5})",
                           R"({"leaf":1})",
                           R"({"leaf":[]})",
                           R"({"counts":1})",
                           R"({"counts":{}})",
                           R"({"counts":[[1]]})",
                           R"({"counts":[{}]})",
                           R"({"files":{}})",
                           R"({"files":[1]})",
                           R"({"by_name":[]})",
                           R"({"by_name":{"a":{}}})",
                           R"({"by_number":{"01":{}}})",
                           R"({"by_number":{"":{}}})",
                           R"({"by_number":{"x":{}}})",
                           R"({"by_flag":{"1":"x"}})",
                           R"({"by_number":{"1":2}})",
                           R"({"word":"a","tree":{}})",
                           R"({"tree":{},"word":"a"})",
                           R"({"u32":null})",
                           R"({"counts":null})",
                           R"({"counts":[null]})",
                           R"({"by_name":{"a":null}})"})
    EXPECT_FALSE(Read(text).ok()) << text;
}

TEST(Reader, RangesIncludeTheirEnds) {
  Everything read;
  ASSERT_TRUE(ReadJson(R"({"u32":4294967295,"i32":-2147483648,"i64":-9223372036854775808,"u64":18446744073709551615})",
                       JsonLimits{}, &read)
                  .ok());
  EXPECT_EQ(read.u64(), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(read.i64(), std::numeric_limits<int64_t>::min());
}

TEST(Reader, NotJson) {
  for (const char* text : {"",
                           " ",
                           "null",
                           "1",
                           "\"x\"",
                           "{",
                           "}",
                           "{}{}",
                           "{} x",
                           "{\"a\"}",
                           "{\"u32\":}",
                           "{\"u32\":01}",
                           "{\"number\":NaN}",
                           "{\"number\":Infinity}",
                           "{\"number\":-}",
                           "{'u32':1}",
                           "{\"u32\":1,}",
                           "// c\n{}",
                           "{\"text\":\"\\ud800\"}",
                           "{\"text\":\"a\nb\"}",
                           "{\"text\":\"\xc0\x80\"}"})
    EXPECT_FALSE(Read(text).ok()) << text;
}

TEST(Reader, AMemberMayOccurOnce) {
  EXPECT_THAT(ErrorOf(R"({"u32":1,"u32":1})"), HasSubstr("u32: occurs twice"));
  EXPECT_THAT(ErrorOf(R"({"new":1,"new":2})"), HasSubstr("new: occurs twice"));
  EXPECT_THAT(ErrorOf(R"({"by_name":{"a":1,"a":2}})"), HasSubstr("by_name[\"a\"]: occurs twice"));
}

TEST(Reader, UnknownMembersAreIgnoredOrRefused) {
  const char* text = R"({"new":{"a":[1,{"b":null},[[]]],"a":1},"last":4,"newer":[{}]})";
  Everything read;
  ASSERT_TRUE(ReadJson(text, JsonLimits{}, &read).ok());
  EXPECT_EQ(read.last(), 4U);
  EXPECT_THAT(ErrorOf(text, {.unknown_fields = UnknownFields::kRefuse}), HasSubstr("new: unknown field"));
}

// Everything that could cost time or memory: refused at the limit, and fast.
TEST(Reader, HostileInputIsCheap) {
  auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(ErrorOf(std::string(10 << 20, '[')), HasSubstr("expected an object"));
  EXPECT_THAT(ErrorOf("{\"new\":" + std::string(10 << 20, '[')), HasSubstr("nested deeper than 32"));
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"inner\":";
  EXPECT_THAT(ErrorOf(objects), HasSubstr("nested deeper than 32"));
  EXPECT_FALSE(Read("{\"u64\":" + std::string(1 << 20, '9') + "}").ok());
  EXPECT_LT(ErrorOf("{\"text\":\"" + std::string(1 << 20, 'x')).size(), 2000U);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(Reader, LimitsHoldAtTheirEdge) {
  EXPECT_TRUE(Read(R"({"last":1})", {.bytes = 10}).ok());
  EXPECT_THAT(ErrorOf(R"({"last":1})", {.bytes = 9}), HasSubstr("at most 9"));
  EXPECT_TRUE(Read(R"({"inner":{"files":[{}]}})", {.depth = 4}).ok());
  EXPECT_THAT(ErrorOf(R"({"inner":{"files":[{}]}})", {.depth = 3}), HasSubstr("nested deeper than 3"));
  EXPECT_TRUE(Read(R"({"text":"abcde"})", {.string_bytes = 5}).ok());
  EXPECT_THAT(ErrorOf(R"({"text":"abcdef"})", {.string_bytes = 5}), HasSubstr("6 bytes; at most 5"));
  EXPECT_THAT(ErrorOf(R"({"unknown":1})", {.string_bytes = 5}), HasSubstr("7 bytes; at most 5"));
  EXPECT_TRUE(Read(R"({"counts":[1,2]})", {.elements = 4}).ok());
  EXPECT_THAT(ErrorOf(R"({"counts":[1,2]})", {.elements = 3}), HasSubstr("more than 3 values"));
  EXPECT_THAT(ErrorOf(R"({"new":[1,2]})", {.elements = 3}), HasSubstr("more than 3 values"));
}

}  // namespace
}  // namespace ckptd
