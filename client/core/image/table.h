// The caller's table of tensors, checked and sorted by name. Inside of this room only.
#ifndef CKPTD_CLIENT_CORE_IMAGE_TABLE_H_
#define CKPTD_CLIENT_CORE_IMAGE_TABLE_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/core/image/image_error.h"
#include "client/core/image/layout.h"

namespace ckptd {

// Keeps the spans and the limits: they outlive it.
class TensorTable {
 public:
  TensorTable(std::span<const TensorSpec> tensors, std::span<const AliasSpec> aliases, const HeaderLimits& limits)
      : tensors_(tensors), aliases_(aliases), limits_(limits) {}

  // False: see error(). The rest may be called after true only.
  [[nodiscard]] bool Check() { return CheckTensors() && CheckNames() && CheckAliases(); }
  [[nodiscard]] const ImageError& error() const { return error_; }

  // Place of the tensor when all are sorted by name: compares faster than the name.
  [[nodiscard]] uint32_t Position(uint32_t tensor) const { return position_[tensor]; }
  // How many chunks of the same name come before this one.
  [[nodiscard]] uint32_t Chunk(uint32_t tensor) const { return chunk_[tensor]; }
  // Calls `visit(const AliasSpec&)` for each other name of the tensor, in order of the names.
  template <typename Visit>
  void ForEachAlias(uint32_t tensor, Visit visit) const;

 private:
  // Alias number `alias` is another name of the tensor whose first chunk is `target`.
  struct AliasRow {
    uint32_t target;
    uint32_t alias;
  };

  [[nodiscard]] bool CheckTensors();
  [[nodiscard]] bool CheckTensor(uint32_t index);
  [[nodiscard]] bool CheckOffsets(uint32_t index);
  [[nodiscard]] bool CheckName(uint32_t index, std::string_view name);
  [[nodiscard]] bool CheckNames();
  [[nodiscard]] bool CheckChunks(uint32_t first, uint32_t second);
  [[nodiscard]] bool CheckAliases();
  [[nodiscard]] bool CheckAlias(uint32_t index);
  [[nodiscard]] std::optional<uint32_t> FirstChunk(std::string_view name) const;
  [[nodiscard]] bool Fail(ImageErrorKind kind, uint64_t index, std::string message);
  [[nodiscard]] bool FailTensor(ImageErrorKind kind, uint32_t index, const std::string& what);

  std::span<const TensorSpec> tensors_;
  std::span<const AliasSpec> aliases_;
  const HeaderLimits& limits_;
  ImageError error_;
  std::vector<uint32_t> by_name_;  // by name, then saved_offsets: the chunks of a name are neighbours
  std::vector<uint32_t> position_;
  std::vector<uint32_t> chunk_;
  std::vector<uint32_t> first_chunk_;  // of each tensor: the first chunk of its name
  std::vector<AliasRow> alias_rows_;   // by target, then name
};

template <typename Visit>
void TensorTable::ForEachAlias(uint32_t tensor, Visit visit) const {
  auto [begin, end] = std::equal_range(alias_rows_.begin(), alias_rows_.end(), AliasRow{first_chunk_[tensor], 0},
                                       [](const AliasRow& a, const AliasRow& b) { return a.target < b.target; });
  for (auto row = begin; row != end; ++row) visit(aliases_[row->alias]);
}

}  // namespace ckptd

#endif  // CKPTD_CLIENT_CORE_IMAGE_TABLE_H_
