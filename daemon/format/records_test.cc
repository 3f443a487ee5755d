#include "daemon/format/records.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "client/core/copy/crc32c.h"
#include "daemon/base/errors.h"
#include "daemon/format/paths.h"

namespace ckptd {
namespace {

v1::Sidecar SidecarOf(Rank rank, uint32_t world) {
  v1::Sidecar sidecar;
  sidecar.set_job("gpt");
  sidecar.set_rank(rank);
  sidecar.set_world_size(world);
  sidecar.set_attempt(3);
  sidecar.set_step(1000);
  v1::SidecarImage* image = sidecar.add_images();
  image->set_name(ImageFileName(rank, world, 0));
  image->set_bytes(3 * 65536 + 4096);
  image->set_header_bytes(4096);
  sidecar.set_chunk_bytes(65536);
  sidecar.set_slot_bytes(image->bytes());
  for (uint32_t i = 0; i < 4; ++i) sidecar.add_chunk_crc32c(i * 77 + rank);
  sidecar.set_trace_id(0xfedcba9876543210);
  return sidecar;
}

TEST(Records, SidecarRoundTrip) {
  std::string text = SidecarText(SidecarOf(1, 2));
  auto read = ParseSidecar(text, "x.json");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->chunk_crc32c(3), 3u * 77 + 1);
  EXPECT_EQ(read->trace_id(), 0xfedcba9876543210u);
}

TEST(Records, EveryFlippedByteIsNoticed) {
  std::string text = SidecarText(SidecarOf(1, 2));
  for (size_t i = 0; i < text.size(); ++i) {
    std::string bad = text;
    bad[i] ^= 1;
    EXPECT_FALSE(ParseSidecar(bad, "x.json").ok()) << "byte " << i;
    EXPECT_FALSE(ParseSidecar(absl::string_view(text).substr(0, i), "x.json").ok()) << "cut at " << i;
  }
}

// Its checksum is right; what else is in it need not be what we know.
TEST(Records, ANewerMajorIsToldApartFromDamage) {
  std::string text = SidecarText(SidecarOf(1, 2));
  const std::string major = "\"format_major\":1,";
  ASSERT_NE(text.find(major), text.npos) << text;
  text.replace(text.find(major), major.size(), "\"format_major\":2,");
  for (const char* job : {"\"gpt\"", "[1,{}]"}) {
    std::string newer = text;
    newer.replace(newer.find("\"gpt\""), 5, job);
    const size_t mark = newer.rfind("\"crc32c\":");
    newer = absl::StrCat(newer.substr(0, mark), "\"crc32c\":", Crc32c(0, newer.data(), mark), "}");
    EXPECT_EQ(CodeOf(ParseSidecar(newer, "x.json").status()), ErrorCode::NEWER_VERSION) << newer;
  }
  EXPECT_EQ(CodeOf(ParseSidecar(text, "x.json").status()), ErrorCode::CORRUPT)
      << "without its checksum nothing is sure";
}

TEST(Records, ManifestBindsTheSidecars) {
  std::vector<std::string> texts = {SidecarText(SidecarOf(0, 2)), SidecarText(SidecarOf(1, 2))};
  auto manifest = MakeManifest(texts);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  std::string text = ManifestText(*manifest);
  EXPECT_EQ(text, ManifestText(*MakeManifest(texts)));
  auto read = ParseManifest(text, "manifest.json");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->files_size(), 2);
  EXPECT_EQ(read->total_bytes(), 2u * (3 * 65536 + 4096));
}

TEST(Records, ChimeraIsRefused) {
  v1::Sidecar other = SidecarOf(1, 2);
  other.set_attempt(4);
  EXPECT_EQ(CodeOf(MakeManifest({SidecarText(SidecarOf(0, 2)), SidecarText(other)}).status()), ErrorCode::CORRUPT);
  EXPECT_EQ(CodeOf(MakeManifest({SidecarText(SidecarOf(0, 2))}).status()), ErrorCode::CORRUPT);
}

TEST(Records, ImpossibleSidecarsAreRefused) {
  v1::Sidecar short_list = SidecarOf(0, 1);
  short_list.mutable_chunk_crc32c()->RemoveLast();
  v1::Sidecar foreign = SidecarOf(0, 1);
  foreign.mutable_images(0)->set_name("../../etc/passwd");
  v1::Sidecar odd = SidecarOf(0, 1);
  odd.set_chunk_bytes(65537);
  for (const v1::Sidecar& bad : {short_list, foreign, odd}) {
    EXPECT_EQ(CodeOf(ParseSidecar(SidecarText(bad), "x").status()), ErrorCode::CORRUPT);
  }
}

v1::Manifest ManifestOf(uint32_t world, uint32_t images) {
  std::vector<std::string> texts;
  for (Rank rank = 0; rank < world; ++rank) {
    v1::Sidecar sidecar = SidecarOf(rank, world);
    sidecar.clear_images();
    for (uint32_t image = 0; image < images; ++image) {
      v1::SidecarImage* added = sidecar.add_images();
      added->set_name(ImageFileName(rank, world, image));
      added->set_bytes(65536);
      added->set_header_bytes(4096);
    }
    sidecar.set_slot_bytes(uint64_t{images} * 65536);
    sidecar.clear_chunk_crc32c();
    for (uint32_t i = 0; i < images; ++i) sidecar.add_chunk_crc32c(i);
    texts.push_back(SidecarText(sidecar));
  }
  return *MakeManifest(texts);
}

TEST(Records, FilesOfAManifestStandInOrderEachOnce) {
  const v1::Manifest good = ManifestOf(2, 3);
  ASSERT_TRUE(ParseManifest(ManifestText(good), "m").ok());
  std::vector<v1::Manifest> bad;
  for (int i = 0; i < good.files_size(); ++i) {
    v1::Manifest missing = good;
    missing.mutable_files()->DeleteSubrange(i, 1);
    missing.set_total_bytes(missing.total_bytes() - 65536);
    // Without its last image a rank looks like a smaller one; only its sidecar knows, and it is bound.
    if (i != 2 && i != 5) bad.push_back(missing);
    v1::Manifest twice = good;
    *twice.add_files() = good.files(i);
    twice.set_total_bytes(twice.total_bytes() + 65536);
    bad.push_back(twice);
    if (i == 0) continue;
    v1::Manifest swapped = good;
    swapped.mutable_files()->SwapElements(i, i - 1);
    bad.push_back(swapped);
  }
  for (const v1::Manifest& manifest : bad) {
    EXPECT_EQ(CodeOf(ParseManifest(ManifestText(manifest), "m").status()), ErrorCode::CORRUPT)
        << manifest.ShortDebugString();
  }
}

TEST(Records, SumsDoNotOverflow) {
  v1::Manifest manifest = ManifestOf(1, 1);
  manifest.mutable_files(0)->set_bytes(UINT64_MAX - 4095);
  manifest.set_total_bytes(UINT64_MAX - 4095);
  EXPECT_EQ(CodeOf(ParseManifest(ManifestText(manifest), "m").status()), ErrorCode::CORRUPT);
}

TEST(Records, ADecisionOfTheLargestJobCanBeRead) {
  v1::DecisionRecord decision;
  decision.set_job(std::string(128, 'j'));
  decision.set_attempt(UINT64_MAX);
  for (uint32_t rank = 0; rank < 65536; ++rank) {
    v1::RankClaim* claim = decision.add_ranks();
    claim->set_rank(rank);
    claim->set_ticket(UINT64_MAX);
    claim->set_agent(std::string(253, 'n'));
    claim->set_region_id(UINT64_MAX);
  }
  const std::string text = DecisionText(decision);
  EXPECT_LT(text.size(), kMaxRecordBytes);
  const auto read = ParseDecisionText(text, "decision");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->ranks_size(), 65536);
}

TEST(Records, Marker) {
  EXPECT_EQ(ParseMarkerText(MarkerText(7), "deleting").value(), 7u);
  EXPECT_FALSE(ParseMarkerText("", "deleting").ok());
  EXPECT_FALSE(ParseMarkerText("attempt x", "deleting").ok());
}

}  // namespace
}  // namespace ckptd
