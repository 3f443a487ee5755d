#include "daemon/storage/store_calls.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"

namespace ckptd {
namespace {

using Call = StoreCalls::Call;

struct Watching {
  StoreCalls& calls;
  const bool awaited;

  // Runs `work` as a call that stands in the table.
  template <typename Work>
  auto Do(const char* operation, const std::string& name, Work work) const {
    Call call(calls, awaited, operation, name);
    return work(call);
  }
};

class WatchedWriter final : public PartWriter {
 public:
  WatchedWriter(std::unique_ptr<PartWriter> inner, Watching watching, std::string name)
      : inner_(std::move(inner)), watching_(watching), name_(std::move(name)) {}
  // Waits for what is in flight, and removes the file.
  ~WatchedWriter() override {
    Call call(watching_.calls, watching_.awaited, "close", name_);
    inner_.reset();
  }

  absl::Status Write(uint64_t offset, std::span<const std::byte> bytes) override {
    return watching_.Do("write", name_, [&](Call&) { return inner_->Write(offset, bytes); });
  }
  absl::Status Sync() override {
    return watching_.Do("sync", name_, [&](Call&) { return inner_->Sync(); });
  }
  absl::Status Finish() override {
    return watching_.Do("sync", name_, [&](Call&) { return inner_->Finish(); });
  }

 private:
  std::unique_ptr<PartWriter> inner_;
  const Watching watching_;
  const std::string name_;
};

class WatchedReader final : public PartReader {
 public:
  WatchedReader(std::unique_ptr<PartReader> inner, Watching watching, std::string name)
      : inner_(std::move(inner)), watching_(watching), name_(std::move(name)) {}

  uint64_t size() const override { return inner_->size(); }

  absl::Status Read(uint64_t offset, std::span<std::byte> memory, size_t piece_bytes,
                    const OnPiece& on_piece) override {
    return watching_.Do("read", name_,
                        [&](Call& call) { return inner_->Read(offset, memory, piece_bytes, Hearing(call, on_piece)); });
  }
  absl::Status Scan(uint64_t offset, uint64_t length, const OnPiece& on_piece) override {
    return watching_.Do("read", name_,
                        [&](Call& call) { return inner_->Scan(offset, length, Hearing(call, on_piece)); });
  }

 private:
  // A long read is no silence, and neither is what the receiver does with a piece.
  static OnPiece Hearing(Call& call, const OnPiece& on_piece) {
    return [&call, &on_piece](uint64_t offset, std::span<std::byte> bytes) {
      absl::Status status = on_piece ? on_piece(offset, bytes) : absl::OkStatus();
      call.Heard();
      return status;
    };
  }

  const std::unique_ptr<PartReader> inner_;
  const Watching watching_;
  const std::string name_;
};

class WatchedStore final : public Store {
 public:
  WatchedStore(Store& inner, StoreCalls& calls, bool awaited) : inner_(inner), watching_{calls, awaited} {}

  absl::Status Probe() override {
    return watching_.Do("look at", kRoot, [&](Call&) { return inner_.Probe(); });
  }
  absl::Status CreateExclusive(const std::string& name, absl::string_view bytes) override {
    return watching_.Do("create", name, [&](Call&) { return inner_.CreateExclusive(name, bytes); });
  }
  absl::Status Confirm(const std::string& name) override {
    return watching_.Do("sync", name, [&](Call&) { return inner_.Confirm(name); });
  }
  absl::StatusOr<std::string> ReadSmall(const std::string& name, size_t max_bytes) override {
    return watching_.Do("read", name, [&](Call&) { return inner_.ReadSmall(name, max_bytes); });
  }
  absl::StatusOr<std::vector<DirEntry>> List(const std::string& directory) override {
    return watching_.Do("list", directory, [&](Call&) { return inner_.List(directory); });
  }
  absl::StatusOr<FileInfo> Stat(const std::string& name) override {
    return watching_.Do("stat", name, [&](Call&) { return inner_.Stat(name); });
  }
  absl::Status Delete(const std::string& name) override {
    return watching_.Do("delete", name, [&](Call&) { return inner_.Delete(name); });
  }
  absl::Status DeleteDirectory(const std::string& directory) override {
    return watching_.Do("delete", directory, [&](Call&) { return inner_.DeleteDirectory(directory); });
  }
  absl::StatusOr<size_t> RemoveTemporary(const std::string& directory, Nanos age) override {
    return watching_.Do("clean", directory, [&](Call&) { return inner_.RemoveTemporary(directory, age); });
  }
  absl::StatusOr<size_t> RemoveLeftovers(const std::string& directory) override {
    return watching_.Do("clean", directory, [&](Call&) { return inner_.RemoveLeftovers(directory); });
  }
  absl::StatusOr<std::unique_ptr<PartWriter>> OpenForWrite(const std::string& name, uint64_t size) override {
    CKPTD_ASSIGN_OR_RETURN(auto writer,
                           watching_.Do("open", name, [&](Call&) { return inner_.OpenForWrite(name, size); }));
    return std::make_unique<WatchedWriter>(std::move(writer), watching_, name);
  }
  absl::StatusOr<std::unique_ptr<PartReader>> OpenForRead(const std::string& name) override {
    CKPTD_ASSIGN_OR_RETURN(auto reader, watching_.Do("open", name, [&](Call&) { return inner_.OpenForRead(name); }));
    return std::make_unique<WatchedReader>(std::move(reader), watching_, name);
  }
  absl::StatusOr<SpaceInfo> Space() override {
    return watching_.Do("stat", kRoot, [&](Call&) { return inner_.Space(); });
  }
  std::string Describe() const override { return inner_.Describe(); }
  bool IsDirect() const override { return inner_.IsDirect(); }

 private:
  inline static const std::string kRoot;

  Store& inner_;
  const Watching watching_;
};

}  // namespace

std::string StoreCalls::Silence::ToString() const {
  return absl::StrCat(operation, " ", path, " for ", FormatDuration(since));
}

StoreCalls::Call::Call(StoreCalls& table, bool awaited, const char* operation, const std::string& name)
    : table_(table), awaited_(awaited), operation_(operation), name_(name), heard_(table.clock_.Monotonic()) {
  MutexLock lock(table_.mutex_);
  table_.calls_.push_back(this);
}

StoreCalls::Call::~Call() {
  MutexLock lock(table_.mutex_);
  std::erase(table_.calls_, this);
}

void StoreCalls::Call::Heard() {
  MutexLock lock(table_.mutex_);
  heard_ = table_.clock_.Monotonic();
}

std::optional<StoreCalls::Silence> StoreCalls::Longest(bool awaited) {
  const Nanos now = clock_.Monotonic();
  MutexLock lock(mutex_);
  const Call* longest = nullptr;
  for (const Call* call : calls_) {
    if (awaited && !call->awaited_) continue;
    if (longest == nullptr || call->heard_ < longest->heard_) longest = call;
  }
  if (longest == nullptr) return std::nullopt;
  const char* slash = longest->name_.empty() ? "" : "/";
  return Silence{longest->operation_, absl::StrCat(root_, slash, longest->name_), now - longest->heard_};
}

std::unique_ptr<Store> MakeWatchedStore(Store& inner, StoreCalls& calls, bool awaited) {
  return std::make_unique<WatchedStore>(inner, calls, awaited);
}

}  // namespace ckptd
