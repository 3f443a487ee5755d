#include "tests/syscalls/mutants.h"

#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <set>
#include <utility>

#include "daemon/base/status_macros.h"
#include "daemon/os/testing/files_around.h"
#include "tests/crash/crash_mutants.h"

namespace ckptd::syscalls {
namespace {

// A name is there only when something else is done: too late for who was told of it.
class LateNames final : public FilesAround {
 public:
  using FilesAround::FilesAround;
  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, const OpenOptions& options) override {
    Catch();
    return inner_.Open(path, options);
  }
  absl::Status Mkdir(const std::string& path, uint32_t mode) override {
    Catch();
    return inner_.Mkdir(path, mode);
  }
  absl::StatusOr<std::vector<DirEntry>> ReadDir(const std::string& path, size_t max_entries) override {
    Catch();
    return inner_.ReadDir(path, max_entries);
  }
  absl::Status Link(const std::string& from, const std::string& to) override {
    Catch();
    late_ = {from, to};
    return inner_.Stat(to).ok() ? absl::Status(absl::StatusCode::kAlreadyExists, "") : absl::OkStatus();
  }
  absl::Status Unlink(const std::string& path) override {
    return late_ && late_->first == path ? absl::OkStatus() : inner_.Unlink(path);
  }

 private:
  void Catch() {
    const auto late = std::exchange(late_, std::nullopt);
    if (!late) return;
    (void)inner_.Link(late->first, late->second);
    (void)inner_.Unlink(late->first);
  }
  std::optional<std::pair<std::string, std::string>> late_;
};

class BlindNames final : public FilesAround {
 public:
  using FilesAround::FilesAround;
  absl::Status Link(const std::string& from, const std::string& to) override {
    const absl::Status linked = inner_.Link(from, to);
    return absl::IsAlreadyExists(linked) ? linked : absl::OkStatus();
  }
};

class BlindDeletion final : public FilesAround {
 public:
  using FilesAround::FilesAround;
  absl::Status Unlink(const std::string& path) override {
    (void)inner_.Unlink(path);
    return absl::OkStatus();
  }
};

class BlindDirectories final : public FilesAround {
 public:
  using FilesAround::FilesAround;
  absl::Status SyncDir(const std::string& path) override {
    (void)inner_.SyncDir(path);
    return absl::OkStatus();
  }
};

class Abort final : public FilesAround {
 public:
  using FilesAround::FilesAround;
  absl::Status Mkdir(const std::string& path, uint32_t mode) override {
    absl::Status made = inner_.Mkdir(path, mode);
    if (!made.ok() && !absl::IsAlreadyExists(made)) std::abort();
    return made;
  }
};

class WaitForEver final : public FilesAround {
 public:
  using FilesAround::FilesAround;
  absl::Status Mkdir(const std::string& path, uint32_t mode) override {
    absl::Status made = inner_.Mkdir(path, mode);
    if (!made.ok() && !absl::IsAlreadyExists(made)) pause();
    return made;
  }
};

class BlindWrites final : public FileAround {
 public:
  using FileAround::FileAround;
  absl::Status PWrite(uint64_t offset, std::span<const std::byte> bytes) override {
    (void)inner_->PWrite(offset, bytes);
    return absl::OkStatus();
  }
};

class OneWrite final : public FileAround {
 public:
  using FileAround::FileAround;
  absl::Status PWrite(uint64_t offset, std::span<const std::byte> bytes) override {
    const ssize_t wrote = pwrite(fd(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    return wrote < 0 ? FileError(errno, "write", path()) : absl::OkStatus();
  }
};

class OneRead final : public FileAround {
 public:
  using FileAround::FileAround;
  absl::StatusOr<size_t> PRead(uint64_t offset, std::span<std::byte> bytes) override {
    const ssize_t got = pread(fd(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (got < 0) return FileError(errno, "read", path());
    return bytes.size();
  }
};

class BlindSync final : public FileAround {
 public:
  using FileAround::FileAround;
  absl::Status Sync() override {
    (void)inner_->Sync();
    return absl::OkStatus();
  }
};

class SyncAgain final : public FileAround {
 public:
  using FileAround::FileAround;
  absl::Status Sync() override {
    const absl::Status status = inner_->Sync();
    return status.ok() ? status : inner_->Sync();
  }
};

class LeftOpen final : public FileAround {
 public:
  using FileAround::FileAround;
  ~LeftOpen() override {
    if (failed_) (void)inner_.release();
  }
  absl::Status Fallocate(uint64_t size) override {
    absl::Status status = inner_->Fallocate(size);
    failed_ = !status.ok();
    return status;
  }

 private:
  bool failed_ = false;
};

template <typename BrokenFile>
class WithFiles final : public FilesAround {
 public:
  using FilesAround::FilesAround;
  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, const OpenOptions& options) override {
    CKPTD_ASSIGN_OR_RETURN(auto file, inner_.Open(path, options));
    return std::make_unique<BrokenFile>(std::move(file));
  }
};

template <typename Broken>
Mutant Of(std::string name, bool short_transfers = false, std::string call = "") {
  return {std::move(name), [](Files& files) { return std::make_unique<Broken>(files); },
          nullptr,         nullptr,
          short_transfers, std::move(call)};
}

std::vector<Mutant> MakeKillMutants() {
  // The others need a power failure, or a second agent.
  const std::set<std::string> shown = {"a record has its bytes before its name", "sidecar after images",
                                       "manifest after images", "manifest after sidecars",
                                       "deletion: manifest before files"};
  std::vector<Mutant> mutants = {Of<LateNames>("a name is there before it is told")};
  for (crash::Mutant& order : crash::OrderMutants()) {
    if (shown.contains(order.name)) mutants.push_back({order.name, nullptr, order.around, order.rules, false, ""});
  }
  return mutants;
}

}  // namespace

const std::vector<Mutant>& KillMutants() {
  static const std::vector<Mutant> mutants = MakeKillMutants();
  return mutants;
}

const std::vector<Mutant>& ErrnoMutants() {
  static const std::vector<Mutant> mutants = {
      Of<WithFiles<BlindWrites>>("errors of write", false, "pwrite64"),
      Of<WithFiles<OneWrite>>("the rest of a short write", true),
      Of<WithFiles<OneRead>>("the rest of a short read", true),
      Of<WithFiles<BlindSync>>("errors of fsync", false, "fsync"),
      Of<WithFiles<SyncAgain>>("no second fsync of a file", false, "fsync"),
      Of<BlindDirectories>("errors of a directory's fsync", false, "fsync"),
      Of<BlindNames>("errors of link", false, "linkat"),
      Of<BlindDeletion>("errors of unlink", false, "unlinkat"),
      Of<WithFiles<LeftOpen>>("close after an error", false, "fallocate"),
      Of<Abort>("no abort at an error", false, "mkdirat"),
      Of<WaitForEver>("no wait at an error", false, "mkdirat"),
  };
  return mutants;
}

const Mutant* FindMutant(const std::string& name) {
  static const Mutant none;
  if (name.empty()) return &none;
  for (const auto* list : {&KillMutants(), &ErrnoMutants()}) {
    for (const Mutant& mutant : *list) {
      if (mutant.name == name) return &mutant;
    }
  }
  return nullptr;
}

}  // namespace ckptd::syscalls
