// Versions of what crosses processes on one node. Majors are refused when out of range; minors only add at the end.
#ifndef CKPTD_PROTO_LOCAL_VERSION_H_
#define CKPTD_PROTO_LOCAL_VERSION_H_

#include <bit>
#include <cstdint>

namespace ckptd {

// Everything in proto/local is stored as the host stores it, and every host we run on is little-endian.
static_assert(std::endian::native == std::endian::little, "formats are little-endian");

inline constexpr uint16_t kProtocolMajorMin = 1;  // oldest socket protocol this build speaks
inline constexpr uint16_t kProtocolMajorMax = 1;
inline constexpr uint16_t kRegionMajor = 1;  // an agent adopts its own and the previous major
inline constexpr uint16_t kRegionMajorMin = 1;
inline constexpr uint16_t kRegionMinor = 2;
inline constexpr uint32_t kFormatMajor = 1;  // manifest, sidecar and records on storage
inline constexpr uint32_t kFormatMinor = 0;

}  // namespace ckptd

#endif  // CKPTD_PROTO_LOCAL_VERSION_H_
