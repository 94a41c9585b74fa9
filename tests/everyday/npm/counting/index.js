exports.words = (text) => text.split(/\s+/).filter(Boolean).length;
