#include "daemon/json/printer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "daemon/json/testing/json_test.pb.h"
#include "proto/ckptd/v1/manifest.pb.h"

namespace ckptd {
namespace {

using testing::Everything;

TEST(Printer, ZerosAndEmptyListsArePresent) {
  std::string text = PrintJson(Everything(), JsonStyle::kCompact);
  EXPECT_EQ(text,
            R"({"i32":0,"i64":0,"u32":0,"u64":0,"s64":0,"f32":0,"number":0,"small":0,"flag":false,"text":"","raw":"",)"
            R"("colour":"NONE","leaf":null,"maybe":null,"counts":[],"files":[],"colours":[],"blobs":[],"by_name":{},)"
            R"("by_number":{},"by_flag":{},"word":null,"tree":null,"inner":null,"last":0})");
}

TEST(Printer, IntegersKeepAllBits) {
  Everything message;
  message.set_u64(std::numeric_limits<uint64_t>::max());
  message.set_i64(std::numeric_limits<int64_t>::min());
  std::string text = PrintJson(message, JsonStyle::kCompact);
  EXPECT_THAT(text, ::testing::HasSubstr("\"u64\":18446744073709551615,"));
  EXPECT_THAT(text, ::testing::HasSubstr("\"i64\":-9223372036854775808,"));
}

TEST(Printer, Floats) {
  Everything message;
  message.set_number(0.1);
  message.set_small(0.1F);
  EXPECT_THAT(PrintJson(message, JsonStyle::kCompact), ::testing::HasSubstr("\"number\":0.1,\"small\":0.1,"));
  message.set_number(std::numeric_limits<double>::quiet_NaN());
  message.set_small(-std::numeric_limits<float>::infinity());
  EXPECT_THAT(PrintJson(message, JsonStyle::kCompact),
              ::testing::HasSubstr("\"number\":\"NaN\",\"small\":\"-Infinity\","));
}

TEST(Printer, StringsAreAlwaysValidJson) {
  Everything message;
  message.set_text("q\" b\\ n\n d\x7f \xc3\xa4 \xf0\x9f\x98\x80 bad\xff\xed\xa0\x80" + std::string(1, '\0'));
  EXPECT_THAT(PrintJson(message, JsonStyle::kCompact),
              ::testing::HasSubstr("\"q\\\" b\\\\ n\\n d\\u007f \xc3\xa4 \xf0\x9f\x98\x80 bad"
                                   "\\ufffd\\ufffd\\ufffd\\ufffd\\u0000\""));
}

TEST(Printer, BytesAreHexAndUnknownEnumValuesNumbers) {
  Everything message;
  message.set_raw(std::string("\x00\xab\x7f", 3));
  message.set_colour(static_cast<testing::Colour>(77));
  message.add_colours(testing::BLUE);
  std::string text = PrintJson(message, JsonStyle::kCompact);
  EXPECT_THAT(text, ::testing::HasSubstr("\"raw\":\"00ab7f\",\"colour\":77,"));
  EXPECT_THAT(text, ::testing::HasSubstr("\"colours\":[\"BLUE\"]"));
}

TEST(Printer, MapsAreSorted) {
  Everything message;
  for (const char* name : {"z", "a", "m", "b"}) (*message.mutable_by_name())[name] = 1;
  EXPECT_THAT(PrintJson(message, JsonStyle::kCompact), ::testing::HasSubstr(R"({"a":1,"b":1,"m":1,"z":1})"));
}

TEST(Printer, IndentedFormIsForPeople) {
  testing::Everything message;
  message.add_counts(1);
  message.add_counts(2);
  message.add_files()->set_name("x");
  std::string text = PrintJson(message, JsonStyle::kIndented);
  EXPECT_THAT(text, ::testing::StartsWith("{\n  \"i32\": 0,\n  \"i64\": 0,\n"));
  EXPECT_THAT(text, ::testing::HasSubstr("\n  \"counts\": [1, 2],\n"));
  EXPECT_THAT(
      text, ::testing::HasSubstr("\n  \"files\": [\n    {\n      \"name\": \"x\",\n      \"size\": 0\n    }\n  ],\n"));
  EXPECT_THAT(text, ::testing::EndsWith("\"last\": 0\n}\n"));
}

// Readers check it over the text before it (proto/ckptd/v1/manifest.proto).
TEST(Printer, OwnChecksumIsTheLastMember) {
  v1::Manifest manifest;
  manifest.set_crc32c(7);
  v1::Sidecar sidecar;
  sidecar.set_crc32c(7);
  EXPECT_THAT(PrintJson(manifest, JsonStyle::kIndented), ::testing::EndsWith(",\n  \"crc32c\": 7\n}\n"));
  EXPECT_THAT(PrintJson(sidecar, JsonStyle::kIndented), ::testing::EndsWith(",\n  \"crc32c\": 7\n}\n"));
}

TEST(Printer, StreamsInPieces) {
  Everything message;
  message.set_text(std::string(100'000, 'x'));
  size_t total = 0;
  size_t longest = 0;
  PrintJson(message, JsonStyle::kCompact, [&](absl::string_view piece) {
    total += piece.size();
    longest = std::max(longest, piece.size());
  });
  EXPECT_EQ(total, PrintJson(message, JsonStyle::kCompact).size());
  EXPECT_LT(longest, 5000U);
}

}  // namespace
}  // namespace ckptd
