# Dalli, whose protocol is the binary one; with a user and a password if they are given.
require 'dalli'

def expect(seen, expected, what)
  abort "#{what}: expected #{expected.inspect}, seen #{seen.inspect}" unless seen == expected
end

address, username, password = ARGV
cache = Dalli::Client.new(address, username: username, password: password)
expect(cache.flush, [true], 'flush_all')
expect(cache.get('a'), nil, 'get of nothing')
cache.set('a', { list: [1, 'two', nil] }, 100)
expect(cache.get('a'), { list: [1, 'two', nil] }, 'get')
expect(cache.add('a', 1), false, 'add of what is there')
cache.replace('none', 1)
expect(cache.get('none'), nil, 'get after replace of nothing')
large = 'pumice ' * 100_000
cache.set('large', large)
expect(cache.get('large'), large, 'get of a large value')
expect(cache.cas('a') { |value| value[:list] << 4; value }.nil?, false, 'cas')
expect(cache.get('a'), { list: [1, 'two', nil, 4] }, 'get after cas')
expect(cache.incr('n', 5, 0, 10), 10, 'incr of nothing')
expect(cache.incr('n', 5), 15, 'incr')
expect(cache.decr('n', 100), 0, 'decr below 0')
expect(cache.incr('none'), nil, 'incr of nothing without a number')
cache.set('raw', 'b', 0, raw: true)
expect(cache.append('raw', 'c'), true, 'append')
expect(cache.prepend('raw', 'a'), true, 'prepend')
expect(cache.get('raw'), 'abc', 'get of what was joined')
expect(cache.touch('raw', 1000), true, 'touch')
expect(cache.touch('none', 1000), nil, 'touch of nothing')
expect(cache.gat('raw', 1000), 'abc', 'gat')
cache.multi { 500.times { |i| cache.set("k#{i}", i) } }
keys = (0...510).map { |i| "k#{i}" }
expect(cache.get_multi(*keys), (0...500).to_h { |i| ["k#{i}", i] }, 'get_multi')
expect(cache.delete('a'), true, 'delete')
expect(cache.delete('a') || false, false, 'delete of nothing')
expect(cache.fetch('made', 100) { 'anew' }, 'anew', 'fetch')
expect(cache.get('made'), 'anew', 'get after fetch')
expect(cache.version.values, ['1.6.18'], 'version')
expect(cache.stats.values.first.key?('curr_items'), true, 'curr_items in stats')
cache.close
