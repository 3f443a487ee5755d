#include "client/core/image/layout.h"

#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "client/core/image/header.h"

namespace ckptd {
namespace {

using K = ImageErrorKind;

Layout Build(const std::vector<TensorSpec>& tensors, const std::vector<AliasSpec>& aliases = {},
             const LayoutOptions& options = {}) {
  Layout layout;
  ImageError error = BuildLayout(tensors, aliases, options, &layout);
  EXPECT_TRUE(error.ok()) << error.message;
  return layout;
}

ImageErrorKind KindOf(const std::vector<TensorSpec>& tensors, const std::vector<AliasSpec>& aliases = {},
                      const LayoutOptions& options = {}) {
  Layout layout;
  return BuildLayout(tensors, aliases, options, &layout).kind;
}

// The slot as bytes: headers where the layout says, 'x' for data.
std::string Slot(const Layout& layout) {
  std::string slot(layout.slot_bytes, 'x');
  for (const LayoutImage& image : layout.images) slot.replace(image.slot_offset, image.header.size(), image.header);
  return slot;
}

std::vector<ImageInfo> ReadBack(const Layout& layout, const HeaderLimits& limits = {}) {
  std::string headers;
  for (const LayoutImage& image : layout.images) headers += image.header;
  std::vector<ImageInfo> images;
  ImageError error = ParseHeaders(headers, layout.slot_bytes, limits, &images);
  EXPECT_TRUE(error.ok()) << error.message;
  return images;
}

TEST(Layout, OneImageByteForByte) {
  Layout layout = Build({{"b", Dtype::kU8, {3}, {}}, {"a", Dtype::kF32, {2}, {}}, {"s", Dtype::kI64, {}, {}}});
  ASSERT_EQ(layout.images.size(), 1U);
  std::string json = layout.images[0].header.substr(8);
  EXPECT_EQ(json.substr(0, json.find_last_not_of(' ') + 1),
            R"({"__metadata__":{"format":"pt","DCP_VERSION":"1.0","DCP_SHARDING_INFO":"{\"s\":{\"saved_offsets\":[]},)"
            R"(\"a\":{\"saved_offsets\":[0]},\"b\":{\"saved_offsets\":[0]},)"
            R"(\"__ckptd_extra__.rank-00000\":{\"saved_offsets\":[0]}}","ckptd.format":"1"},)"
            R"("s":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
            R"("a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]},)"
            R"("b":{"dtype":"U8","shape":[3],"data_offsets":[16,19]},)"
            R"("__ckptd_extra__.rank-00000":{"dtype":"U8","shape":[69613],"data_offsets":[19,69632]}})");
  EXPECT_EQ(layout.images[0].header.size(), 4096U);
  EXPECT_EQ(layout.slot_bytes, 4096U + 69632U);
  EXPECT_EQ(layout.extra_offset, 4096U + 19U);
  EXPECT_EQ(layout.extra_bytes, 69613U);
}

TEST(Layout, OrderOfRowsDoesNotMatter) {
  std::vector<TensorSpec> tensors = {
      {"a", Dtype::kF32, {2}, {}}, {"b", Dtype::kBF16, {2}, {}}, {"c", Dtype::kF32, {1}, {}}};
  std::vector<AliasSpec> aliases = {{"x", "a"}, {"y", "a"}, {"z", "c"}};
  std::string before = Slot(Build(tensors, aliases));
  std::reverse(tensors.begin(), tensors.end());
  std::reverse(aliases.begin(), aliases.end());
  EXPECT_EQ(Slot(Build(tensors, aliases)), before);
}

TEST(Layout, EmptyTableHoldsTheExtraTensor) {
  Layout layout = Build({}, {}, {.rank = 7, .extra_capacity = 1});
  EXPECT_EQ(layout.slot_bytes, 8192U);
  EXPECT_EQ(ReadBack(layout)[0].tensors[0].name, "__ckptd_extra__.rank-00007");
}

TEST(Layout, ExtraCapacityIsNeverLess) {
  for (uint64_t capacity : {0, 1, 4095, 4096, 4097, 100000}) {
    Layout layout = Build({{"a", Dtype::kU8, {5}, {}}}, {}, {.extra_capacity = capacity});
    EXPECT_GE(layout.extra_bytes, capacity);
    EXPECT_LT(layout.extra_bytes, capacity + 4096);
    EXPECT_EQ(layout.slot_bytes % 4096, 0U);
  }
}

TEST(Layout, AliasesAreJsonInMetadata) {
  Layout layout = Build({{"a", Dtype::kF32, {1}, {}}}, {{"z\"", "a"}, {"head", "a"}});
  EXPECT_EQ(*ReadBack(layout)[0].Metadata("ckptd.aliases"), R"({"head":"a","z\"":"a"})");
  EXPECT_EQ(ReadBack(Build({}))[0].Metadata("ckptd.aliases"), nullptr);
}

TEST(Layout, ChunksOfOneNameGoToSeveralImages) {
  Layout layout =
      Build({{"w", Dtype::kF32, {2, 3}, {4, 0}}, {"w", Dtype::kF32, {2, 3}, {0, 0}}, {"v", Dtype::kU8, {5}, {}}},
            {{"tied", "w"}});
  std::vector<ImageInfo> images = ReadBack(layout);
  ASSERT_EQ(images.size(), 2U);
  EXPECT_NE(images[0].Find("v"), nullptr);
  EXPECT_NE(images[0].Find("w"), nullptr);
  EXPECT_NE(images[1].Find("w"), nullptr);
  EXPECT_EQ(layout.images[0].tensors[0].source, 1U);
  EXPECT_EQ(layout.images[1].tensors[0].source, 0U);
  EXPECT_NE(images[0].Find("__ckptd_pad__.rank-00000.part-00"), nullptr);
  EXPECT_EQ(images[0].Find("__ckptd_extra__.rank-00000"), nullptr);
  EXPECT_EQ(images[1].tensors.back().name, "__ckptd_extra__.rank-00000");
  EXPECT_NE(images[1].Metadata("DCP_SHARDING_INFO")->find(R"("w":{"saved_offsets":[4,0]})"), std::string::npos);
  for (const ImageInfo& image : images) EXPECT_EQ(*image.Metadata("ckptd.aliases"), R"({"tied":"w"})");

  std::string slot = Slot(layout);
  std::vector<ImageInfo> walked;
  auto read = [&](uint64_t offset, char* into, size_t size) {
    slot.copy(into, size, offset);
    return 0;
  };
  ASSERT_TRUE(WalkImages(slot.size(), read, {}, &walked).ok());
  EXPECT_EQ(walked.size(), 2U);
  EXPECT_EQ(WalkImages(slot.size() - 4096, read, {}, &walked).kind, K::kTruncated);
  auto failing = [](uint64_t, char*, size_t) { return EIO; };
  EXPECT_EQ(WalkImages(slot.size(), failing, {}, &walked).kind, K::kRead);
}

TEST(Layout, WalkLimits) {
  Layout layout = Build({{"w", Dtype::kU8, {1}, {0}}, {"w", Dtype::kU8, {1}, {1}}});
  std::string headers = layout.images[0].header + layout.images[1].header;
  std::vector<ImageInfo> images;
  EXPECT_EQ(ParseHeaders(headers, layout.slot_bytes, {.max_images = 2}, &images).kind, K::kOk);
  EXPECT_EQ(ParseHeaders(headers, layout.slot_bytes, {.max_images = 1}, &images).kind, K::kLimit);
  EXPECT_EQ(ParseHeaders(headers, layout.slot_bytes, {.max_tensors = 4}, &images).kind, K::kOk);
  EXPECT_EQ(ParseHeaders(headers, layout.slot_bytes, {.max_tensors = 3}, &images).kind, K::kLimit);
  EXPECT_EQ(ParseHeaders(headers, layout.slot_bytes - 1, {}, &images).kind, K::kTruncated);
  EXPECT_EQ(ParseHeaders(headers + "x", layout.slot_bytes + 4096, {}, &images).kind, K::kTruncated);
  EXPECT_EQ(ParseHeaders("", 4096, {}, &images).kind, K::kTruncated);
}

TEST(Layout, AClaimBeyondTheTextIsTruncatedBeforeItIsRead) {
  std::string claim("\x00\x00\x00\x03\0\0\0\0{}", 10);  // 48 MiB
  std::vector<ImageInfo> images;
  ImageError error = ParseHeaders(claim, uint64_t{1} << 46, {}, &images);
  EXPECT_EQ(error.kind, K::kTruncated);
  EXPECT_EQ(error.message, "image 0: the image has 10 bytes where 50331656 are needed");
  EXPECT_TRUE(images.empty());
}

TEST(Layout, WalkRefusesUnalignedImages) {
  std::string header = WriteHeader(std::vector<HeaderTensor>{}, {});
  std::vector<ImageInfo> images;
  EXPECT_TRUE(ParseHeaders(header, 8192, {}, &images).ok());
  uint64_t five = 5;
  HeaderTensor odd{"a", Dtype::kU8, {&five, 1}, {}, 0, 5};
  EXPECT_EQ(ParseHeaders(WriteHeader({&odd, 1}, {}), 8192, {}, &images).kind, K::kSize);
}

TEST(Layout, LongHeadersAreSplit) {
  LayoutOptions options;
  options.limits.max_header_bytes = 16384;
  std::vector<TensorSpec> tensors;
  tensors.reserve(200);
  for (int i = 0; i < 200; ++i) tensors.push_back({"layer." + std::to_string(i), Dtype::kBF16, {7}, {}});
  Layout layout = Build(tensors, {}, options);
  EXPECT_GT(layout.images.size(), 2U);
  size_t stored = 0;
  for (const ImageInfo& image : ReadBack(layout, options.limits)) {
    EXPECT_LE(image.header_bytes, 16384U);
    EXPECT_EQ(image.total_bytes % 4096, 0U);
    stored += image.tensors.size() - 1;
  }
  EXPECT_EQ(stored, tensors.size());
}

// Names that grow most under escaping must not carry a header over the limit.
TEST(Layout, SplitBoundHoldsForEveryEscape) {
  LayoutOptions options;
  options.limits.max_header_bytes = 65536;
  for (size_t dims : {0, 16}) {
    for (std::string_view filler : {"\"", "\\", "\x01", "\n", "x"}) {
      std::vector<TensorSpec> tensors;
      std::vector<AliasSpec> aliases;
      for (int i = 0; i < 500; ++i) {
        std::string name = std::to_string(i);
        for (int n = 0; n < 100; ++n) name += filler;
        tensors.push_back({name, Dtype::kU8, std::vector<uint64_t>(dims, 1), {}});
        if (dims > 0) aliases.push_back({"tied" + name, name});
      }
      for (const ImageInfo& image : ReadBack(Build(tensors, aliases, options), options.limits)) {
        EXPECT_LE(image.header_bytes, 65536U);
      }
    }
  }
}

TEST(Layout, Refusals) {
  auto one = [](std::string name) { return KindOf({{std::move(name), Dtype::kU8, {1}, {}}}); };
  EXPECT_EQ(one("a\xff"), K::kText);
  EXPECT_EQ(one(std::string(1024, 'x')), K::kOk);
  EXPECT_EQ(one(std::string(1025, 'x')), K::kLimit);
  EXPECT_EQ(one(""), K::kName);
  EXPECT_EQ(one("__metadata__"), K::kName);
  EXPECT_EQ(one("__ckptd_extra__.rank-00000"), K::kName);
  EXPECT_EQ(KindOf({{"a", Dtype::kU8, std::vector<uint64_t>(16, 1), {}}}), K::kOk);
  EXPECT_EQ(KindOf({{"a", Dtype::kU8, std::vector<uint64_t>(17, 1), {}}}), K::kLimit);
  EXPECT_EQ(KindOf({{"a", Dtype::kF4, {3}, {}}}), K::kSize);
  EXPECT_EQ(KindOf({{"a", Dtype::kU8, {3}, {1, 2}}}), K::kSize);
  EXPECT_EQ(KindOf({{"a", Dtype::kU8, {3}, {kMaxFormatNumber - 2}}}), K::kSize);
  EXPECT_EQ(KindOf({{"a", Dtype::kU8, {3}, {}}, {"a", Dtype::kU8, {3}, {}}}), K::kDuplicate);
  EXPECT_EQ(KindOf({{"a", Dtype::kU8, {3}, {}}, {"a", Dtype::kU8, {3}, {0}}}), K::kDuplicate);
  EXPECT_EQ(KindOf({{"a", Dtype::kU8, {3}, {0}}, {"a", Dtype::kI8, {3}, {3}}}), K::kDuplicate);
  EXPECT_EQ(KindOf({{"a", Dtype::kU8, {kMaxFormatNumber}, {}}, {"b", Dtype::kU8, {kMaxFormatNumber}, {}}}), K::kSize);
  EXPECT_EQ(KindOf({}, {{"x", "a"}}), K::kAlias);
  EXPECT_EQ(KindOf({{"a", Dtype::kU8, {1}, {}}}, {{"a", "a"}}), K::kAlias);
  EXPECT_EQ(KindOf({{"a", Dtype::kU8, {1}, {}}}, {{"x", "a"}, {"x", "a"}}), K::kDuplicate);
  EXPECT_EQ(KindOf({{"a", Dtype::kU8, {1}, {}}}, {{"x\xff", "a"}}), K::kText);
  LayoutOptions two{.limits = {.max_tensors = 2}};
  EXPECT_EQ(KindOf({{"a", Dtype::kU8, {1}, {}}}, {}, two), K::kOk);
  EXPECT_EQ(KindOf({{"a", Dtype::kU8, {1}, {}}, {"b", Dtype::kU8, {1}, {}}}, {}, two), K::kLimit);
  EXPECT_EQ(KindOf({{"a", Dtype::kU8, {1}, {}}}, {}, {.extra_capacity = UINT64_MAX}), K::kLimit);
}

std::string RandomName(std::mt19937_64& random) {
  const std::string_view pieces[] = {"layer", ".", "\"", "\\", "\n", "\x01", "/", "gr\xc3\xbc", "\xf0\x9f\x98\x80",
                                     "0",     "7"};
  std::string name = std::to_string(random() % 1000) + "-";
  for (uint64_t n = random() % 8; n > 0; --n) name += pieces[random() % std::size(pieces)];
  return name;
}

TensorSpec RandomTensor(std::mt19937_64& random, size_t number) {
  TensorSpec tensor{RandomName(random) + std::to_string(number), static_cast<Dtype>(random() % kDtypeCount), {8}, {}};
  for (uint64_t n = random() % 4; n > 0; --n) tensor.shape.push_back(random() % 6);
  if (random() % 2 == 0) {
    for (size_t d = 0; d < tensor.shape.size(); ++d) tensor.saved_offsets.push_back(random() % 1000);
  }
  return tensor;
}

TEST(Layout, RandomTablesRoundTrip) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 200; ++round) {
    std::vector<TensorSpec> tensors;
    for (uint64_t n = random() % 60; n > 0; --n) tensors.push_back(RandomTensor(random, tensors.size()));
    Layout layout = Build(tensors, {}, {.rank = 3, .extra_capacity = random() % 10000});
    ImageInfo image = ReadBack(layout).at(0);
    ASSERT_EQ(image.tensors.size(), tensors.size() + 1);
    uint32_t bits = 64;
    for (const PlacedTensor& placed : layout.images[0].tensors) {
      if (placed.source == kFiller) continue;
      const TensorSpec& spec = tensors[placed.source];
      const TensorEntry* entry = image.Find(spec.name);
      ASSERT_NE(entry, nullptr) << spec.name;
      EXPECT_EQ(entry->dtype, spec.dtype);
      EXPECT_EQ(entry->shape, spec.shape);
      EXPECT_EQ(image.header_bytes + entry->begin, placed.slot_offset);
      EXPECT_EQ(entry->end - entry->begin, placed.bytes);
      EXPECT_LE(DtypeBits(spec.dtype), bits);
      EXPECT_EQ(entry->begin % std::max(1U, DtypeBits(spec.dtype) / 8), 0U);
      bits = DtypeBits(spec.dtype);
    }
  }
}

double CpuMs() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

// Of building and of parsing so many.
std::pair<double, double> CpuMsOf(int count) {
  std::vector<TensorSpec> tensors;
  tensors.reserve(count);
  for (int i = 0; i < count; ++i) {
    tensors.push_back({"optim.state.model.layers." + std::to_string(i) + ".self_attn.q_proj.weight.exp_avg",
                       Dtype::kF32,
                       {128, 64},
                       {0, 64}});
  }
  const double start = CpuMs();
  const Layout layout = Build(tensors);
  const double built = CpuMs();
  EXPECT_EQ(ReadBack(layout)[0].tensors.size(), static_cast<size_t>(count) + 1);
  return {built - start, CpuMs() - built};
}

// An accident of order n^2 would take 64 times as long for eight times as many; a slow machine takes long for both.
TEST(Layout, HundredThousandTensors) {
  const auto [few_build, few_parse] = CpuMsOf(12500);
  const auto [build, parse] = CpuMsOf(100000);
  std::printf("100,000 tensors: build %.0f ms, parse %.0f ms; an eighth: %.0f and %.0f ms\n", build, parse, few_build,
              few_parse);
  EXPECT_LT(build, 24 * few_build);
  EXPECT_LT(parse, 24 * few_parse);
}

}  // namespace
}  // namespace ckptd
