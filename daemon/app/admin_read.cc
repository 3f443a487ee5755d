// Inspect and Restore: a step's headers, and its bytes, from the best place.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/core/copy/crc32c.h"
#include "daemon/app/admin_commands.h"
#include "daemon/app/admin_inspect.h"
#include "daemon/app/admin_source.h"
#include "daemon/base/status_macros.h"
#include "daemon/format/tensor_entries.h"

namespace ckptd {
namespace {

constexpr int kEntriesPerMessage = 4096;
constexpr size_t kEntryBytes = 900 << 10;               // of a message
constexpr uint64_t kDataBytes = (1 << 20) - (4 << 10);  // of a message
constexpr char kNobody[] = "nobody waits for it";

std::optional<Rank> RankOf(bool has, Rank rank) { return has ? std::optional<Rank>(rank) : std::nullopt; }

// Pinned as long as it is held.
struct Chosen {
  std::unique_ptr<Pins> pins;
  SnapshotId id;
  CatalogStep step;
};

absl::StatusOr<Chosen> Choose(AdminContext& context, const AdminCall& call, const v1::Target& target) {
  Chosen chosen;
  chosen.pins = std::make_unique<Pins>(context.agent, target.job());
  CKPTD_ASSIGN_OR_RETURN(Catalog catalog, ReadCatalog(context, call, target.job(), chosen.pins.get()));
  CKPTD_ASSIGN_OR_RETURN(const CatalogStep* step, FindStep(catalog, target));
  if (!step->committed() && !catalog.storage.ok() && !step->in_region()) return catalog.storage;
  chosen.step = *step;
  chosen.id = step->id;
  chosen.pins->KeepOnly(step->id);
  return chosen;
}

// The headers of one rank's images.
absl::StatusOr<std::vector<NamedImage>> ReadRankHeaders(const RankSource& source) {
  CKPTD_ASSIGN_OR_RETURN(auto headers, ReadImageHeaders(source));
  if (headers.size() != source.images.size()) {
    return Error(ErrorCode::CORRUPT, absl::StrCat(source.where, ": not as many images as its record says"));
  }
  std::vector<NamedImage> images;
  for (size_t i = 0; i < headers.size(); ++i) {
    CKPTD_ASSIGN_OR_RETURN(NamedImage image, NameImage(source.images[i].name, source.rank, std::move(headers[i])));
    images.push_back(std::move(image));
  }
  return images;
}

// Sends the entries in messages of bounded size.
class EntryWriter {
 public:
  EntryWriter(AdminStream<v1::InspectResponse>& stream, const SnapshotId& id, std::string source) : stream_(stream) {
    header_.set_attempt(id.attempt);
    header_.set_step(id.step);
    header_.set_source(std::move(source));
    message_ = header_;
  }
  bool Add(v1::TensorEntry entry) {
    bytes_ += entry.ByteSizeLong() + 4;
    *message_.add_tensors() = std::move(entry);
    return (message_.tensors_size() < kEntriesPerMessage && bytes_ < kEntryBytes) || Send();
  }
  bool Send() {
    bytes_ = 0;
    return stream_.Write(std::exchange(message_, header_));
  }

 private:
  AdminStream<v1::InspectResponse>& stream_;
  v1::InspectResponse header_;
  v1::InspectResponse message_;
  size_t bytes_ = 0;
};

// Sends one rank's bytes, chunk after checked chunk, as the files that they are.
class FileWriter {
 public:
  FileWriter(AdminStream<v1::RestoreResponse>& stream, uint32_t first_file, const RankSource& source)
      : stream_(stream), first_(first_file), source_(source) {}

  absl::Status OnChunk(uint64_t offset, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const SourceImage& image = source_.images[image_];
      const uint64_t left = image.offset + image.bytes - offset;
      const auto piece = bytes.first(std::min<uint64_t>({left, bytes.size(), kDataBytes}));
      if (!SendData(offset - image.offset, piece)) return Error(ErrorCode::CANCELLED, kNobody);
      offset += piece.size();
      bytes = bytes.subspan(piece.size());
      if (piece.size() == left && !SendEnd()) return Error(ErrorCode::CANCELLED, kNobody);
    }
    return absl::OkStatus();
  }

 private:
  bool SendData(uint64_t offset, std::span<const std::byte> bytes) {
    crc_ = Crc32c(crc_, bytes.data(), bytes.size());  // of bytes that matched the save's checksums
    v1::RestoreResponse message;
    message.mutable_data()->set_file(first_ + image_);
    message.mutable_data()->set_offset(offset);
    message.mutable_data()->set_data(bytes.data(), bytes.size());
    return stream_.Write(std::move(message));
  }
  bool SendEnd() {
    v1::RestoreResponse message;
    message.mutable_end()->set_file(first_ + image_++);
    message.mutable_end()->set_crc32c(std::exchange(crc_, 0));
    return stream_.Write(std::move(message));
  }

  AdminStream<v1::RestoreResponse>& stream_;
  const uint32_t first_;
  const RankSource& source_;
  uint32_t image_ = 0;
  uint32_t crc_ = 0;
};

v1::RestoreResponse BeginOf(const SnapshotId& id, const std::vector<RankSource>& sources,
                            const std::vector<std::string>& skipped) {
  v1::RestoreResponse message;
  v1::RestoreBegin* begin = message.mutable_begin();
  begin->set_attempt(id.attempt);
  begin->set_step(id.step);
  begin->set_source(sources[0].kind);
  for (const RankSource& source : sources) {
    for (const SourceImage& image : source.images) {
      v1::RestoreFile* file = begin->add_files();
      file->set_name(image.name);
      file->set_bytes(image.bytes);
      file->set_rank(source.rank);
    }
  }
  for (const std::string& sentence : skipped) begin->add_skipped(sentence);
  return message;
}

// Memory is read through once before anything is sent: it is fast, and a damaged slot must not end a restore that
// storage can serve.
absl::StatusOr<std::vector<RankSource>> GoodMemory(AdminContext& context, const Chosen& chosen,
                                                   const v1::Target& target, std::optional<Rank> rank,
                                                   const std::atomic<bool>& cancel) {
  CKPTD_ASSIGN_OR_RETURN(auto sources, RegionSources(chosen.step, rank));
  OrderedRead check;
  check.cancel = &cancel;
  for (const RankSource& source : sources) {
    absl::Status status = ReadInOrder(source, check);
    if (status.ok()) continue;
    const RegionCopy* copy = chosen.step.CopyOf(source.rank);
    if (CodeOf(status) == ErrorCode::CORRUPT) {
      (void)context.gate.Run([&, slot = copy->slot, owner = source.rank] {
        if (JobRunner* job = context.agent.FindJob(target.job())) {
          job->PostToRank(owner, snapshot::DamageFound{slot, chosen.id});
        }
      });
    }
    return status;
  }
  return sources;
}

}  // namespace

absl::Status InspectStep(AdminContext& context, AdminStream<v1::InspectResponse>& stream,
                         const v1::InspectRequest& request) {
  CKPTD_ASSIGN_OR_RETURN(Chosen chosen, Choose(context, stream, request.target()));
  std::optional<Rank> wanted = RankOf(request.has_rank(), request.rank());
  if (wanted && chosen.step.world != 0 && *wanted >= chosen.step.world)
    return Error(ErrorCode::NOT_FOUND, absl::StrCat("rank ", *wanted, ": the job has ", chosen.step.world, " ranks"));
  auto sources = BestSources(context.store, request.target().job(), chosen.step, std::nullopt);
  // The whole tensors are known from all ranks; one rank's own pieces also when the others are elsewhere.
  if (!sources.ok() && wanted) sources = BestSources(context.store, request.target().job(), chosen.step, wanted);
  if (!sources.ok()) return sources.status();
  EntryWriter out(stream, chosen.id, sources->kind);
  InspectOrder order;
  order.ranks = sources->ranks;
  order.wanted = wanted;
  order.read = [&](Rank rank) -> absl::StatusOr<std::vector<NamedImage>> {
    CKPTD_ASSIGN_OR_RETURN(const RankSource source, sources->open(rank));
    return ReadRankHeaders(source);
  };
  order.cancelled = [&stream] { return stream.cancelled(); };
  order.send = [&out](v1::TensorEntry entry) { return out.Add(std::move(entry)); };
  CKPTD_RETURN_IF_ERROR(InspectRanks(order));
  return out.Send() ? absl::OkStatus() : Error(ErrorCode::CANCELLED, kNobody);
}

absl::Status RestoreStep(AdminContext& context, AdminStream<v1::RestoreResponse>& stream,
                         const v1::RestoreRequest& request) {
  CKPTD_ASSIGN_OR_RETURN(Chosen chosen, Choose(context, stream, request.target()));
  std::optional<Rank> rank = RankOf(request.has_rank(), request.rank());
  std::vector<std::string> skipped;
  auto sources = GoodMemory(context, chosen, request.target(), rank, stream.cancel_flag());
  if (!sources.ok()) {
    absl::Status memory = sources.status();
    if (CodeOf(memory) != ErrorCode::NOT_FOUND) skipped.push_back(std::string(memory.message()));
    sources = StorageSources(context.store, request.target().job(), chosen.step, rank);
    if (!sources.ok()) return CodeOf(memory) == ErrorCode::NOT_FOUND ? sources.status() : memory;
    chosen.pins.reset();
  }
  if (!stream.Write(BeginOf(chosen.id, *sources, skipped))) return Error(ErrorCode::CANCELLED, kNobody);
  uint32_t file = 0;
  for (const RankSource& source : *sources) {
    FileWriter writer(stream, file, source);
    OrderedRead read;
    read.cancel = &stream.cancel_flag();
    read.sink = [&](uint64_t offset, std::span<const std::byte> bytes) { return writer.OnChunk(offset, bytes); };
    CKPTD_RETURN_IF_ERROR(ReadInOrder(source, read));
    file += static_cast<uint32_t>(source.images.size());
  }
  return absl::OkStatus();
}

}  // namespace ckptd
