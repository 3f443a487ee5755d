#include "client/core/image/parser.h"

#include <gtest/gtest.h>

#include <random>

namespace ckptd {
namespace {

std::string Prefixed(const std::string& json) {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(json.size() >> (8 * i));
  return out + json;
}

// Parses a file with this header and `data` bytes after it.
ImageError Parse(const std::string& json, uint64_t data, ImageInfo* info, const HeaderLimits& limits = {}) {
  std::string header = Prefixed(json);
  return ParseHeader(header, header.size() + data, ImageEnd::kExact, limits, info);
}

ImageErrorKind Kind(const std::string& json, uint64_t data, const HeaderLimits& limits = {}) {
  ImageInfo info;
  ImageError error = Parse(json, data, &info, limits);
  EXPECT_EQ(error.message.empty(), error.ok()) << json;
  return error.kind;
}

std::string U8(const std::string& name, uint64_t begin, uint64_t end) {
  return "\"" + name + "\":{\"dtype\":\"U8\",\"shape\":[" + std::to_string(end - begin) + "],\"data_offsets\":[" +
         std::to_string(begin) + "," + std::to_string(end) + "]}";
}

using K = ImageErrorKind;

// Every row of the table of what the reference reader accepts and rejects. "Stricter" marks the rows where we follow
// the written format and not the reference.
TEST(Parser, ReferenceTable) {
  const std::string a = "{" + U8("a", 0, 4) + "}";
  EXPECT_EQ(Kind(a + std::string(4096 - 8 - a.size(), ' '), 4), K::kOk);
  EXPECT_EQ(Kind(a + " ", 4), K::kOk);       // any length
  EXPECT_EQ(Kind(" " + a, 4), K::kSyntax);   // stricter: leading space
  EXPECT_EQ(Kind(a + "\n", 4), K::kSyntax);  // stricter: newline padding
  EXPECT_EQ(Kind(a + "\t", 4), K::kSyntax);  // stricter: tab padding
  EXPECT_EQ(Kind(a + std::string(3, '\0'), 4), K::kSyntax);
  EXPECT_EQ(Kind("{" + U8("a", 0, 4) + "," + U8("b", 5, 6) + "}", 6), K::kOffsets);  // hole
  EXPECT_EQ(Kind("{" + U8("a", 0, 4) + "," + U8("b", 3, 6) + "}", 6), K::kOffsets);  // overlap
  EXPECT_EQ(Kind("{" + U8("a", 1, 4) + "}", 4), K::kOffsets);                        // does not begin at 0
  EXPECT_EQ(Kind(a, 5), K::kOffsets);                                                // bytes after the last tensor
  EXPECT_EQ(Kind(a, 3), K::kTruncated);
  EXPECT_EQ(Kind("{" + U8("b", 4, 6) + "," + U8("a", 0, 4) + "}", 6), K::kOk);  // order of keys is free
  EXPECT_EQ(Kind("{" + U8("e", 4, 4) + "," + U8("a", 0, 4) + "}", 4), K::kOk);  // empty tensor
  EXPECT_EQ(Kind(R"({"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", 4), K::kOk);
  EXPECT_EQ(Kind("{}", 0), K::kOk);
  EXPECT_EQ(Kind(R"({"__metadata__":{"k":"v"}})", 0), K::kOk);
  EXPECT_EQ(Kind(R"({"__metadata__":{"k":1}})", 0), K::kSyntax);
  EXPECT_EQ(Kind(R"({"__metadata__":{"k":null}})", 0), K::kSyntax);
  EXPECT_EQ(Kind(R"({"__metadata__":"v"})", 0), K::kSyntax);
  EXPECT_EQ(Kind("{" + U8("a", 0, 4) + "," + U8("a", 0, 4) + "}", 4), K::kOffsets);
  EXPECT_EQ(Kind("{" + U8("a", 0, 4) + "," + U8("a", 4, 8) + "}", 8), K::kDuplicate);  // stricter: last wins there
  EXPECT_EQ(Kind(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"x":1}})", 4), K::kField);  // stricter
  EXPECT_EQ(Kind("{" + U8("a", 0, 1) + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})", 5), K::kOk);
}

TEST(Parser, HeaderLongerThanFileOrLimit) {
  ImageInfo info;
  std::string header = Prefixed("{}");
  EXPECT_EQ(ParseHeader(header, 9, ImageEnd::kExact, {}, &info).kind, K::kTruncated);
  EXPECT_EQ(ParseHeader(header.substr(0, 9), 10, ImageEnd::kExact, {}, &info).kind, K::kTruncated);
  EXPECT_EQ(ParseHeader(header.substr(0, 7), 7, ImageEnd::kExact, {}, &info).kind, K::kTruncated);
  EXPECT_EQ(ParseHeader(std::string(8, '\xff'), UINT64_MAX, ImageEnd::kExact, {}, &info).kind, K::kLimit);
  EXPECT_EQ(ParseHeader(std::string(8, '\0'), 8, ImageEnd::kExact, {}, &info).kind, K::kSyntax);
}

TEST(Parser, Fields) {
  auto tensor = [](const std::string& body) { return Kind("{\"a\":{" + body + "}}", 4); };
  EXPECT_EQ(tensor(R"("data_offsets":[0,4],"shape":[4],"dtype":"U8")"), K::kOk);
  EXPECT_EQ(tensor(R"("dtype":"U8","shape":[4])"), K::kField);
  EXPECT_EQ(tensor(R"("dtype":"U8","data_offsets":[0,4])"), K::kField);
  EXPECT_EQ(tensor(R"("shape":[4],"data_offsets":[0,4])"), K::kField);
  EXPECT_EQ(tensor(R"("dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4])"), K::kDuplicate);
  EXPECT_EQ(tensor(R"("dtype":"C128","shape":[4],"data_offsets":[0,4])"), K::kDtype);
  EXPECT_EQ(tensor(R"("dtype":"U8","shape":[4],"data_offsets":[4,0])"), K::kSize);
  EXPECT_EQ(tensor(R"("dtype":"U8","shape":[3],"data_offsets":[0,4])"), K::kSize);
  EXPECT_EQ(tensor(R"("dtype":"F4","shape":[7],"data_offsets":[0,4])"), K::kSize);
  EXPECT_EQ(tensor(R"("dtype":"U8","shape":[281474976710655,281474976710655],"data_offsets":[0,4])"), K::kSize);
  EXPECT_EQ(tensor(R"("dtype":"U8","shape":[281474976710656],"data_offsets":[0,4])"), K::kLimit);
  EXPECT_EQ(tensor(R"("dtype":"U8","shape":[99999999999999999999999999],"data_offsets":[0,4])"), K::kLimit);
  for (const char* number : {"-4", "+4", "4.0", "4e0", "04", "\"4\"", "", "null", "[4]", "0x4"})
    EXPECT_EQ(tensor(std::string(R"("dtype":"U8","shape":[)") + number + R"(],"data_offsets":[0,4])"),
              std::string_view(number).empty() ? K::kSize : K::kSyntax)
        << number;
  EXPECT_EQ(tensor(""), K::kSyntax);
  EXPECT_EQ(tensor(R"("dtype":"U8","shape":[4],"data_offsets":[0,4],)"), K::kSyntax);
  EXPECT_EQ(tensor(R"("dtype":"U8","shape":[4,],"data_offsets":[0,4])"), K::kSyntax);
  EXPECT_EQ(tensor(R"("dtype":"U8","shape":[4],"data_offsets":[0,4,4])"), K::kSyntax);
  EXPECT_EQ(tensor(R"("dtype":"U8","shape":[4],"data_offsets":[0])"), K::kSyntax);
}

TEST(Parser, Strings) {
  auto name_of = [](const std::string& written) {
    ImageInfo info;
    ImageError error = Parse("{" + U8(written, 0, 1) + "}", 1, &info);
    return error.ok() ? info.tensors[0].name : "";
  };
  EXPECT_EQ(name_of(R"(a\"\\\/\b\f\n\r\tz)"), "a\"\\/\b\f\n\r\tz");
  EXPECT_EQ(name_of(R"(\u0041\u00fc\u20AC)"), "A\xc3\xbc\xe2\x82\xac");
  EXPECT_EQ(name_of(R"(\uD83D\uDE00)"), "\xf0\x9f\x98\x80");
  EXPECT_EQ(name_of("\xf0\x9f\x98\x80"), "\xf0\x9f\x98\x80");
  for (const char* bad : {R"(\uD83D)", R"(\uDE00)", R"(\uDE00\uDC00)", R"(\uD83Dx)", R"(\uD83D\u0041)", R"(\u12)",
                          R"(\u12g4)", R"(\x41)", "\xff", "\xc3", "\xed\xa0\x80", "a\nb", "a\x01"})
    EXPECT_EQ(Kind("{" + U8(bad, 0, 1) + "}", 1), K::kText) << bad;
  EXPECT_EQ(Kind(R"({"\u0061":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)" + U8("a", 1, 2) + "}", 2),
            K::kDuplicate);
}

TEST(Parser, MetadataOnceAndDistinct) {
  EXPECT_EQ(Kind(R"({"__metadata__":{},"__metadata__":{}})", 0), K::kDuplicate);
  EXPECT_EQ(Kind(R"({"__metadata__":{"a":"1","a":"2"}})", 0), K::kDuplicate);
  ImageInfo info;
  ASSERT_TRUE(Parse(R"({"__metadata__":{"b":"1","a":""},)" + U8("t", 0, 3) + "}", 3, &info).ok());
  EXPECT_EQ(*info.Metadata("b"), "1");
  EXPECT_EQ(*info.Metadata("a"), "");
  EXPECT_EQ(info.Metadata("c"), nullptr);
}

TEST(Parser, ErrorsNameTensorAndPlace) {
  ImageInfo info;
  ImageError error =
      Parse("{" + U8("a", 0, 4) + R"(, "w.q":{"dtype":"U7","shape":[4],"data_offsets":[4,8]}})", 8, &info);
  EXPECT_EQ(error.message, R"(tensor "w.q": unknown dtype "U7")");
  EXPECT_GT(error.offset, 8U);
  error = Parse("{" + U8("a", 0, 4) + "," + U8("b", 6, 8) + "}", 8, &info);
  EXPECT_EQ(error.message, R"(tensor "b" begins at 6, after a hole from 4)");
}

TEST(Parser, Limits) {
  HeaderLimits limits{
      .max_header_bytes = 4096, .max_tensors = 3, .max_name_bytes = 20, .max_dims = 2, .max_metadata = 2};
  auto tensors = [](int n) {
    std::string json = "{";
    for (int i = 0; i < n; ++i) json += (i > 0 ? "," : "") + U8(std::to_string(i), i, i + 1);
    return json + "}";
  };
  HeaderLimits wide = limits;
  wide.max_header_bytes = 1 << 20;
  EXPECT_EQ(Kind(tensors(3), 3, wide), K::kOk);
  EXPECT_EQ(Kind(tensors(4), 4, wide), K::kLimit);
  EXPECT_EQ(Kind(tensors(3000), 3000, wide), K::kLimit);
  for (auto [bytes, kind] : {std::pair{size_t{20}, K::kOk}, {21, K::kLimit}, {20000, K::kLimit}}) {
    EXPECT_EQ(Kind("{" + U8(std::string(bytes, 'x'), 0, 1) + "}", 1, wide), kind);
    std::string escaped;
    for (size_t i = 0; i < bytes; ++i) escaped += "\\n";
    EXPECT_EQ(Kind("{" + U8(escaped, 0, 1) + "}", 1, wide), kind);
  }
  auto shaped = [](size_t dims) {
    std::string shape = "1";
    for (size_t i = 1; i < dims; ++i) shape += ",1";
    return R"({"a":{"dtype":"U8","shape":[)" + shape + R"(],"data_offsets":[0,1]}})";
  };
  EXPECT_EQ(Kind(shaped(2), 1, wide), K::kOk);
  EXPECT_EQ(Kind(shaped(3), 1, wide), K::kLimit);
  EXPECT_EQ(Kind(shaped(2000), 1, wide), K::kLimit);
  EXPECT_EQ(Kind(R"({"__metadata__":{"a":"","b":""}})", 0, wide), K::kOk);
  EXPECT_EQ(Kind(R"({"__metadata__":{"a":"","b":"","c":""}})", 0, wide), K::kLimit);
  EXPECT_EQ(Kind("{}" + std::string(4096 - 8 - 2, ' '), 0, limits), K::kOk);
  EXPECT_EQ(Kind("{}" + std::string(4096 - 8 - 1, ' '), 0, limits), K::kLimit);
  EXPECT_EQ(Kind("{}" + std::string(4096000, ' '), 0, limits), K::kLimit);
}

TEST(Parser, NestingIsRefusedAtOnce) {
  for (char c : {'[', '{'}) {
    EXPECT_EQ(Kind("{\"a\":" + std::string(8'000'000, c), 0), K::kSyntax);
    EXPECT_EQ(Kind(R"({"a":{"dtype":"U8","shape":)" + std::string(8'000'000, c), 0), K::kSyntax);
    EXPECT_EQ(Kind(std::string(8'000'000, c), 0), K::kSyntax);
  }
}

std::string Sample() {
  return R"({"__metadata__":{"format":"pt","x\u00fc":"\ud83d\ude00"}, "w":{"dtype":"F32","shape":[2,3],)"
         R"("data_offsets":[0,24]}, "b":{"shape":[],"dtype":"U8","data_offsets":[24,25]}}   )";
}

TEST(Parser, TruncatedAtEveryByte) {
  ASSERT_EQ(Kind(Sample(), 25), K::kOk);
  size_t end = Sample().rfind('}') + 1;
  for (size_t n = 0; n < Sample().size(); ++n) EXPECT_EQ(Kind(Sample().substr(0, n), 25) == K::kOk, n >= end) << n;
  std::string header = Prefixed(Sample());
  for (size_t n = 0; n < header.size(); ++n) {
    ImageInfo info;
    EXPECT_EQ(ParseHeader(std::string(header, 0, n), n, ImageEnd::kAtMost, {}, &info).kind, K::kTruncated);
  }
}

// What still parses after a flipped bit must still be an image without holes.
TEST(Parser, EveryBitFlip) {
  std::string header = Prefixed(Sample());
  size_t accepted = 0;
  for (size_t bit = 0; bit < header.size() * 8; ++bit) {
    std::string flipped = header;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    ImageInfo info;
    if (!ParseHeader(flipped, header.size() + 25, ImageEnd::kExact, {}, &info).ok()) continue;
    ++accepted;
    EXPECT_EQ(info.total_bytes, header.size() + 25);
    EXPECT_EQ(info.tensors.back().end, 25U);
  }
  EXPECT_GT(accepted, 0U);  // a letter of a name or of metadata
  EXPECT_LT(accepted, header.size() * 4);
}

TEST(Parser, RandomText) {
  std::mt19937_64 random(7);
  const std::string alphabet = R"({}[]:,"\u0123dtypeshapedata_offsets__metadata__U8 )";
  for (int round = 0; round < 20000; ++round) {
    std::string text = Sample();
    for (uint64_t edits = 1 + random() % 6; edits > 0; --edits) {
      size_t at = random() % text.size();
      text.replace(at, random() % 4, 1, alphabet[random() % alphabet.size()]);
    }
    ImageInfo info;
    bool ok = Parse(text, 25, &info).ok();
    EXPECT_TRUE(!ok || info.total_bytes == 8 + text.size() + 25) << text;
  }
}

}  // namespace
}  // namespace ckptd
