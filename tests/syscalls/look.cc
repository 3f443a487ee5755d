#include "tests/syscalls/look.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "daemon/os/posix_files.h"
#include "daemon/os/testing/files_around.h"
#include "daemon/storage/publish.h"
#include "tests/crash/crash_disk.h"
#include "tests/syscalls/real_tree.h"

namespace ckptd::syscalls {
namespace {

namespace fs = std::filesystem;

std::string WrongTree(const std::string& folder, const crash::Promise& promise) {
  const sim::Tree tree = TreeBelow(folder);
  std::string wrong = crash::WrongNames(tree, {}, promise);
  return wrong.empty() ? crash::WrongImages(tree) : wrong;
}

std::string LeftOver(const std::string& folder) {
  for (const auto& entry : fs::recursive_directory_iterator(folder + crash::kRoot)) {
    if (IsTemporaryName(entry.path().filename().string())) return absl::StrCat("left: ", entry.path().string());
  }
  return "";
}

// A save goes through, and the next agent gives it.
std::string WrongNext(const std::string& folder, const crash::NodeOptions& options, const SnapshotId& before) {
  const std::unique_ptr<Files> storage = MakeFilesBelow(folder + crash::kRoot);
  FilesAround files(*storage, folder);
  crash::Memory memory;
  crash::Node node(files, memory, options, nullptr);
  const absl::Status status = node.Restore();
  if (!status.ok() || node.parent() != before) {
    return absl::StrCat("R7: restore() gave ", ToString(before), ", the next one ",
                        status.ok() ? ToString(node.parent()) : std::string(status.message()));
  }
  node.Save(before.step + 1);
  node.Drain();
  if (node.durable().step == before.step + 1) return node.wrong();
  return absl::StrCat("a save on ", ToString(before), " comes to ", ToString(node.durable()));
}

}  // namespace

crash::Answer RecoverBelow(const std::string& folder, const crash::NodeOptions& options) {
  const std::unique_ptr<Files> storage = MakeFilesBelow(folder + crash::kRoot);
  FilesAround files(*storage, folder);
  crash::Memory memory;
  crash::Node node(files, memory, options, nullptr);
  crash::Answer answer;
  answer.status = node.Restore();
  answer.id = node.parent();
  answer.wrong = node.wrong();
  node.Drain();
  return answer;
}

std::string WrongBelow(const std::string& folder, const crash::NodeOptions& options, const crash::Promise& promise) {
  std::string wrong = WrongTree(folder, promise);
  if (!wrong.empty()) return wrong;
  const crash::Answer answer = RecoverBelow(folder, options);
  wrong = crash::WrongAnswer(answer, promise);
  if (wrong.empty()) wrong = crash::WrongSteps(TreeBelow(folder), "");
  if (wrong.empty()) wrong = LeftOver(folder);
  return wrong.empty() ? WrongNext(folder, options, answer.id) : wrong;
}

}  // namespace ckptd::syscalls
