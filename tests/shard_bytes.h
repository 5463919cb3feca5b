// shard_bytes.h - token shards as bytes, made without the code under test.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace octavo::testing {

inline void put32(std::string& bytes, std::size_t at, std::int32_t value) {
  std::memcpy(bytes.data() + at, &value, 4);
}

template <typename Id>
std::string id_bytes(const std::vector<Id>& ids) {
  return {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(Id)};
}

inline std::string shard_bytes(std::int32_t magic, std::int32_t version, std::int32_t count,
                               const std::string& ids) {
  std::string bytes(1024, '\0');
  put32(bytes, 0, magic);
  put32(bytes, 4, version);
  put32(bytes, 8, count);
  return bytes + ids;
}

inline std::string shard16(const std::vector<std::uint16_t>& ids) {
  return shard_bytes(20240520, 1, static_cast<std::int32_t>(ids.size()), id_bytes(ids));
}
inline std::string shard32(const std::vector<std::uint32_t>& ids) {
  return shard_bytes(20240801, 7, static_cast<std::int32_t>(ids.size()), id_bytes(ids));
}

}  // namespace octavo::testing
